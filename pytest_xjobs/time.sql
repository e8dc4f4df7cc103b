-- Virtual time of a test database: the clock functions, answering what the sequence xjobs_time.clock says.
--
-- Works where the schema is searched before pg_catalog: search_path = public, xjobs_time, pg_catalog.
-- May be run again: it then leaves the functions as here and the time real.
--
-- The sequence holds one number, mode in its two low bits and microseconds above them:
--     0             real time
--     us * 4 + 1    frozen, at us microseconds after 1970-01-01 00:00 UTC
--     us * 4 + 2    shifted: time goes on, us microseconds ahead of the real one (negative: behind)
-- A sequence, because setval is outside transactions: every session sees it at once, under REPEATABLE READ too, and
-- no rollback takes it back.

create schema if not exists xjobs_time;
grant usage on schema xjobs_time to public;

create sequence if not exists xjobs_time.clock minvalue -9223372036854775808 start 0;
grant select on sequence xjobs_time.clock to public;

do $install$
declare
    clock record;
begin
    -- Without a log a move takes a quarter less, and a crash brings back real time.
    if current_setting('server_version_num')::int >= 150000 then
        alter sequence xjobs_time.clock set unlogged;
    end if;

    for clock in
        select * from (values
            ('now', 'stable'),
            ('transaction_timestamp', 'stable'),
            ('statement_timestamp', 'stable'),
            ('clock_timestamp', 'volatile')
        ) as clocks (name, volatility)
    loop
        -- PL/pgSQL, because it evaluates this without a query of its own; a row costs 0.8 microseconds, and 4.5 in SQL.
        -- Cost 1, as for the functions it hides, so that plans stay those of real time.
        -- Seconds and microseconds apart, because an interval is multiplied as a double, which is exact only that way.
        execute format($create$
            create or replace function xjobs_time.%1$I() returns timestamptz
            language plpgsql %2$s parallel safe cost 1 as $body$
            declare
                v constant bigint := pg_catalog.pg_sequence_last_value('xjobs_time.clock'::pg_catalog.regclass);
            begin
                return case when v <> 0 then
                    case when v & 1 = 1 then timestamptz '1970-01-01 00:00:00+00' else pg_catalog.%1$I() end
                    + interval '1 second' * ((v >> 2) / 1000000)
                    + interval '1 microsecond' * ((v >> 2) %% 1000000)
                else pg_catalog.%1$I() end;
            end
            $body$
        $create$, clock.name, clock.volatility);
        execute format('grant execute on function xjobs_time.%I() to public', clock.name);
    end loop;
end
$install$;

-- A clone brings its template's time along.
select pg_catalog.setval('xjobs_time.clock', 0);
