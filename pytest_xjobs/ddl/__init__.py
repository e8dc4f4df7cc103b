"""The DDL checks in pytest: items for what ini `xjobs_ddl` names, the `xjobs_ddl` fixture, and what the report says.

Imported only in runs that use them.
"""
