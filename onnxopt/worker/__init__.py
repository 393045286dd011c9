"""Processes of our own, for what a model can make crash, hang or explode: started, limited, called, ended."""
