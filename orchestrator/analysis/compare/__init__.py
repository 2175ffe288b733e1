"""One bench against another: which cells differ, how sure that is, and the likeliest causes."""
