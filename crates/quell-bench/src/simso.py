# Simulates periodic tasks with SimSo under global EDF, for `quell bench sim`. Input and output are JSON.
import json
import os
import sys
import time
from importlib.metadata import version

from simso.configuration import Configuration
from simso.core import Model

given = json.load(sys.stdin)
# SimSo tells of each job there.
result, sys.stdout = sys.stdout, open(os.devnull, "w")
configuration = Configuration()
configuration.duration = int(given["seconds"] * 1000 * configuration.cycles_per_ms)
for number, task in enumerate(given["tasks"]):
    configuration.add_task(
        name=f"t{number}",
        identifier=number,
        period=task["period_us"] / 1000,
        wcet=task["run_us"] / 1000,
        deadline=task["period_us"] / 1000,
        activation_date=0,
    )
for cpu in range(given["cpus"]):
    configuration.add_processor(name=f"cpu{cpu}", identifier=cpu)
configuration.scheduler_info.clas = "simso.schedulers.EDF"
configuration.check_all()
model = Model(configuration)
began = time.monotonic()
model.run_model()
json.dump({"version": version("simso"), "took_s": time.monotonic() - began}, result)
