"""The frame: finds the verbs, maps errors to exit codes and shows messages. It does no other work."""
