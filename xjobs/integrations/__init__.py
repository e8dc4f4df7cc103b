"""One module per library whose connections the queue can join; imported when such a connection is given."""
