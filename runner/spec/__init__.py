"""What people write, validated once: studies and profiles, with errors as FILE:LINE:COL. It reads no run."""
