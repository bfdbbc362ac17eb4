"""The verbs: one file each. A file here without a leading underscore is a verb of `runner`.

It defines `command`, whose signature is the verb's options; the file's docstring is its help. What only this
verb needs is in its file; what several share is in the packages below, or here behind an underscore.
"""
