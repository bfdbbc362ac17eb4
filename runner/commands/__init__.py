"""The verbs: one file each. A file here without a leading underscore is a verb of `runner`.

The file defines `command`, whose signature gives the verb's options; the file's docstring is its help text.
Code that only one verb needs is in its file; shared code is in the packages below, or here in a file with a
leading underscore.
"""
