"""What a message means and when a result may be sent: pure, without sockets, clocks, tasks or logging."""
