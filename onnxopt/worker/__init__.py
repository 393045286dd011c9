"""Worker processes, isolated from models that crash, hang or explode: started, limited, called, ended."""
