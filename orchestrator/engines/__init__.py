"""What hands out hosts for a while, and takes them back: Slurm and Kubernetes, each a folder."""
