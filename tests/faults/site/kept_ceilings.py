"""What a device can do, measured once for all tests: each study has its own record of that, which a user makes once.

To measure takes a processor two seconds, most of them to import torch.
"""

import os
import shutil
from pathlib import Path


def kept(known_ceilings, key_of):
    """`runner.job.ceilings.known_ceilings`, which first looks for the record of another test."""

    def known(config, manifest, study, *others):
        name = f"{key_of(config, manifest)}.json"
        own, all_tests = study / ".nodes" / name, Path(os.environ["ASSAY_TEST_SHARED"]) / name
        if all_tests.exists() and not own.exists():
            own.parent.mkdir(exist_ok=True)
            shutil.copyfile(all_tests, own)
        answer = known_ceilings(config, manifest, study, *others)
        if own.exists() and not all_tests.exists():
            shutil.copyfile(own, aside := all_tests.with_suffix(f".{os.getpid()}"))
            aside.rename(all_tests)
        return answer

    return known
