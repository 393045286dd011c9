"""What strangers may send: thousands of files and calls, all made by script, and what is promised for each of them."""
