"""Progress by Kubeflow's SDK: update_trainjob_status, with the counts that the operator reads first."""

import os
import time

from kubeflow.trainer import update_trainjob_status

STEPS = int(os.environ.get("STEPS", "40"))

sent = 0
for step in range(1, STEPS + 1):
    time.sleep(0.5)
    # At most one each 5 seconds leaves; the last one may be among those that do not.
    sent += update_trainjob_status(100 * step // STEPS, metrics={"current_step": step, "total_steps": STEPS})
print(f"finished: {sent} of {STEPS} reports sent", flush=True)
