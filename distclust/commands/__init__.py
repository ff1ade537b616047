"""What each command does, once its arguments are parsed.

One plain function a verb. Results go to standard output, as text for people or as one JSON
document; progress, notes and logs go to standard error. Everything that can be refused is
refused before work starts, and files appear whole or not at all.
"""
