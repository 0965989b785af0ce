"""Work in flight: what is booked on each instance, here and by the other routers."""
