//! What a batch script of Slurm meets in a worker of a TrainingJob with `rendezvous: Slurm`.
//!
//! **Holds** the variables ([`environment`]) and the small programs of `programs/` ([`PROGRAMS`]): `srun`, `scontrol`, `sbatch`, `hostname`
//! and `module`. They are POSIX sh and need nothing of an image but `/bin/sh`.
//!
//! **Flows**: the place of a worker in; names and values out. The operator puts the programs' text into annotations of the pod, which a
//! volume of the downward API shows as files.
//!
//! **Must never be here**: I/O, or Kubernetes.

/// Folder of the programs in the container.
pub const FOLDER: &str = "/run/andreas/slurm";
/// Program that starts the batch script; its arguments are the command of the container.
pub const BATCH: &str = "andreas-batch";
/// Tasks on each node, where the template's environment says so. Else there is one for each GPU, or for each `SLURM_GPUS_PER_TASK`.
pub const TASKS_PER_NODE: &str = "SLURM_NTASKS_PER_NODE";
/// GPUs of a task, where the template's environment says so: a task then sees only these.
pub const GPUS_PER_TASK: &str = "SLURM_GPUS_PER_TASK";
/// CPUs of a task, where the template's environment says so. Else the CPUs of the container are shared by its tasks.
pub const CPUS_PER_TASK: &str = "SLURM_CPUS_PER_TASK";
/// Signal before the end, as the option `--signal` of `sbatch`. Default: SIGTERM to the steps.
pub const SIGNAL: &str = "SBATCH_SIGNAL";

/// All variables that a batch script or a task has of Slurm, and the rendezvous.
pub const VARIABLES: &str = "CUDA_VISIBLE_DEVICES MASTER_ADDR MASTER_PORT SLURMD_NODENAME SLURM_CPUS_ON_NODE \
    SLURM_CPUS_PER_TASK SLURM_GPUS SLURM_GPUS_ON_NODE SLURM_GPUS_PER_NODE SLURM_GTIDS \
    SLURM_JOBID SLURM_JOB_CPUS_PER_NODE SLURM_JOB_GPUS SLURM_JOB_ID SLURM_JOB_NAME \
    SLURM_JOB_NODELIST SLURM_JOB_NUM_NODES SLURM_LAUNCH_NODE_IPADDR SLURM_LOCALID SLURM_NNODES \
    SLURM_NODEID SLURM_NODELIST SLURM_NPROCS SLURM_NTASKS SLURM_NTASKS_PER_NODE SLURM_PROCID \
    SLURM_RESTART_COUNT SLURM_SRUN_COMM_HOST SLURM_STEPID SLURM_STEP_GPUS SLURM_STEP_ID \
    SLURM_STEP_NODELIST SLURM_STEP_NUM_NODES SLURM_STEP_NUM_TASKS SLURM_STEP_TASKS_PER_NODE \
    SLURM_SUBMIT_DIR SLURM_SUBMIT_HOST SLURM_TASKS_PER_NODE SLURM_TASK_PID";
/// Variables that scripts set for `srun`, and that are not there otherwise.
pub const INPUTS: &str = "SLURM_EXPORT_ENV SRUN_CPUS_PER_TASK SLURM_DISTRIBUTION SLURM_GPUS_PER_TASK SLURM_LABELIO \
    SLURM_KILL_BAD_EXIT";

/// A file in [`FOLDER`].
#[derive(Clone, Copy, Debug)]
pub struct Program {
    /// Name of the file.
    pub name: &'static str,
    source: &'static str,
}

macro_rules! program {
    ($name:literal, $file:literal) => {
        Program { name: $name, source: include_str!(concat!("../programs/", $file)) }
    };
}

/// All files.
pub const PROGRAMS: [Program; 10] = [
    program!("andreas-batch", "andreas-batch"),
    program!("andreas-lib", "andreas-lib"),
    program!("andreas-options", "andreas-options"),
    program!("andreas-path", "andreas-path"),
    program!("hostname", "hostname"),
    program!("module", "module"),
    program!("ml", "module"),
    program!("sbatch", "sbatch"),
    program!("scontrol", "scontrol"),
    program!("srun", "srun"),
];

impl Program {
    /// The text without comments and indentation: each pod carries it.
    pub fn text(&self) -> String {
        let comment = |line: &&str| line.starts_with('#') && !line.starts_with("#!");
        let lines = self.source.lines().map(str::trim_start).filter(|line| !comment(line));
        lines.flat_map(|line| [line, "\n"]).collect()
    }
}

/// The place of a worker in its job.
#[derive(Clone, Debug)]
pub struct Place {
    /// Name of the job.
    pub job: String,
    /// UID of the job: all attempts have one job ID.
    pub uid: String,
    /// Number of the attempt, from 1.
    pub attempt: i64,
    /// Index of the worker, from 0.
    pub index: usize,
    /// Host names of all workers.
    pub hosts: Vec<String>,
    /// GPUs of a worker.
    pub gpus: u32,
}

/// The variables of a worker whose container asks for so many CPUs. `given` are values of the template's environment.
pub fn environment<'a>(
    place: &Place,
    cpus_on_node: u32,
    given: impl Fn(&str) -> Option<&'a str>,
) -> Vec<(&'static str, String)> {
    let count = |name| given(name).and_then(|text: &str| text.trim().parse().ok()).filter(|n: &u32| *n > 0);
    let of_gpus = || place.gpus / count(GPUS_PER_TASK).unwrap_or(1);
    let tasks = count(TASKS_PER_NODE).unwrap_or_else(of_gpus).max(1);
    let cpus = count(CPUS_PER_TASK).unwrap_or(cpus_on_node / tasks).max(1);
    let nodes = place.hosts.len();
    vec![
        ("SLURM_JOB_ID", job_id(&place.uid).to_string()),
        ("SLURM_JOB_NAME", place.job.clone()),
        ("SLURM_JOB_NUM_NODES", nodes.to_string()),
        ("SLURM_NNODES", nodes.to_string()),
        ("SLURM_NODEID", place.index.to_string()),
        ("SLURM_NTASKS", (u64::from(tasks) * nodes as u64).to_string()),
        (TASKS_PER_NODE, tasks.to_string()),
        ("SLURM_GPUS_ON_NODE", place.gpus.to_string()),
        (CPUS_PER_TASK, cpus.to_string()),
        ("SLURM_CPUS_ON_NODE", cpus_on_node.max(1).to_string()),
        ("SLURM_JOB_NODELIST", place.hosts.join(",")),
        ("SLURM_RESTART_COUNT", (place.attempt - 1).max(0).to_string()),
    ]
}

/// A number of at most eight digits, as Slurm's: scripts make ports of it.
fn job_id(uid: &str) -> u64 {
    // FNV-1a: the same on every machine and in every release.
    let step = |hash: u64, byte: u8| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
    10_000_000 + uid.bytes().fold(0xcbf2_9ce4_8422_2325, step) % 57_000_000
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(gpus: u32, given: &[(&str, &str)]) -> Vec<(&'static str, String)> {
        let hosts = ["a-2-0.g.t.svc", "a-2-1.g.t.svc"].map(str::to_owned).to_vec();
        let place = Place { job: "a".into(), uid: "u".into(), attempt: 2, index: 1, hosts, gpus };
        environment(&place, 32, |name| given.iter().find(|(n, _)| *n == name).map(|(_, value)| *value))
    }

    fn value(env: &[(&str, String)], name: &str) -> String {
        env.iter().find(|(n, _)| *n == name).map(|(_, value)| value.clone()).unwrap_or_default()
    }

    #[test]
    fn there_is_a_task_for_each_gpu_that_the_plan_gave() {
        let env = of(4, &[]);
        for (name, expected) in [
            ("SLURM_NTASKS", "8"),
            ("SLURM_NTASKS_PER_NODE", "4"),
            ("SLURM_GPUS_ON_NODE", "4"),
            ("SLURM_CPUS_PER_TASK", "8"),
            ("SLURM_NNODES", "2"),
            ("SLURM_NODEID", "1"),
            ("SLURM_RESTART_COUNT", "1"),
            ("SLURM_JOB_NODELIST", "a-2-0.g.t.svc,a-2-1.g.t.svc"),
        ] {
            assert_eq!(value(&env, name), expected, "{name}");
        }
        assert_eq!(value(&env, "SLURM_JOB_ID").len(), 8);
    }

    #[test]
    fn the_templates_environment_says_how_many_tasks_a_node_has() {
        let tasks = |gpus, given: &[(&str, &str)]| {
            let env = of(gpus, given);
            (value(&env, "SLURM_NTASKS"), value(&env, "SLURM_CPUS_PER_TASK"))
        };
        assert_eq!(tasks(8, &[(TASKS_PER_NODE, "1")]), ("2".into(), "32".into()));
        assert_eq!(tasks(8, &[(GPUS_PER_TASK, "2")]), ("8".into(), "8".into()));
        assert_eq!(tasks(1, &[(GPUS_PER_TASK, "2")]), ("2".into(), "32".into()));
        assert_eq!(tasks(4, &[(TASKS_PER_NODE, "many"), (CPUS_PER_TASK, "3")]), ("8".into(), "3".into()));
        assert_eq!(tasks(4, &[(TASKS_PER_NODE, "0"), (GPUS_PER_TASK, "0")]), ("8".into(), "8".into()));
    }

    #[test]
    fn programs_are_small_enough_for_annotations_and_keep_their_first_line() {
        let size: usize = PROGRAMS.iter().map(|program| program.text().len()).sum();
        assert!(size < 30_000, "{size} bytes in each pod");
        assert!(PROGRAMS.iter().all(|program| !program.text().contains("\n#")));
        let srun = PROGRAMS.iter().find(|program| program.name == "srun").map(Program::text);
        assert!(srun.is_some_and(|text| text.starts_with("#!/bin/sh\n")));
    }
}
