//! Variables: those of Slurm that a script uses, and those that it sets.

use super::super::launch;
use super::super::notes::Notes;
use super::shell;

const PREFIX: &str = "SLURM_";
/// Variables of Slurm and what stands for them.
const INSTEAD: [(&str, &str); 29] = [
    ("SLURM_JOB_NODELIST", "PET_MASTER_ADDR, the host of worker 0"),
    ("SLURM_NODELIST", "PET_MASTER_ADDR, the host of worker 0"),
    ("SLURM_STEP_NODELIST", "PET_MASTER_ADDR, the host of worker 0"),
    ("SLURM_LAUNCH_NODE_IPADDR", "PET_MASTER_ADDR, the host of worker 0"),
    ("SLURM_JOB_NUM_NODES", "PET_NNODES"),
    ("SLURM_NNODES", "PET_NNODES"),
    ("SLURM_STEP_NUM_NODES", "PET_NNODES"),
    ("SLURM_NODEID", "PET_NODE_RANK"),
    ("SLURM_PROCID", "RANK, within torchrun"),
    ("SLURM_LOCALID", "LOCAL_RANK, within torchrun"),
    ("SLURM_NTASKS", "WORLD_SIZE, within torchrun"),
    ("SLURM_NPROCS", "WORLD_SIZE, within torchrun"),
    ("SLURM_STEP_NUM_TASKS", "WORLD_SIZE, within torchrun"),
    ("SLURM_NTASKS_PER_NODE", "LOCAL_WORLD_SIZE, within torchrun"),
    ("SLURM_TASKS_PER_NODE", "LOCAL_WORLD_SIZE, within torchrun"),
    ("SLURM_GPUS_ON_NODE", "PET_NPROC_PER_NODE"),
    ("SLURM_GPUS_PER_NODE", "PET_NPROC_PER_NODE"),
    ("SLURM_JOB_ID", "ANDREAS_JOB, the name of the job"),
    ("SLURM_JOBID", "ANDREAS_JOB, the name of the job"),
    ("SLURM_JOB_NAME", "ANDREAS_JOB, the name of the job"),
    ("SLURM_ARRAY_JOB_ID", "ANDREAS_JOB, the name of the job"),
    ("SLURM_ARRAY_TASK_ID", "one TrainingJob for each run, with the number in its env"),
    ("SLURM_ARRAY_TASK_COUNT", "the number itself"),
    ("SLURM_CPUS_PER_TASK", "the number itself"),
    ("SLURM_CPUS_ON_NODE", "the number itself"),
    ("SLURM_JOB_CPUS_PER_NODE", "the number itself"),
    ("SLURM_MEM_PER_NODE", "the number itself"),
    ("SLURM_SUBMIT_DIR", "workingDir in the template"),
    ("SLURM_TMPDIR", "a volume of the template, such as an emptyDir"),
];

/// A variable and its value.
pub type Variable = (String, String);

/// Notes the variables of Slurm that a script uses.
pub fn of_slurm(text: &str, notes: &mut Notes) {
    for line in text.lines().map(shell::without_comment) {
        for variable in used(line) {
            let instead = INSTEAD.iter().find(|(name, _)| *name == variable);
            match instead {
                Some((_, instead)) => notes.lost(variable, format!("is not set: use {instead}")),
                None => notes.lost(variable, "is not set: only Slurm sets it"),
            }
        }
    }
}

/// Names of Slurm's variables in a line, without those to which it gives a value.
fn used(line: &str) -> Vec<&str> {
    let of_name = |c: char| c.is_ascii_alphanumeric() || c == '_';
    let mut found = Vec::new();
    for (at, _) in line.match_indices(PREFIX) {
        let (before, rest) = line.split_at(at);
        // `MY_SLURM_X` is another variable.
        if before.ends_with(of_name) {
            continue;
        }
        let end = rest.find(|c| !of_name(c)).unwrap_or(rest.len());
        let (name, after) = rest.split_at(end);
        let given = after.starts_with('=') && !after.starts_with("==") && !before.ends_with('{');
        if name.len() > PREFIX.len() && !given {
            found.push(name);
        }
    }
    found
}

/// `NAME=value`.
pub fn assignment(word: &str) -> Option<Variable> {
    let (name, value) = word.split_once('=')?;
    let letter = |c: char| c.is_ascii_alphabetic() || c == '_';
    let is_name = name.starts_with(letter) && name.chars().all(|c| letter(c) || c.is_ascii_digit());
    is_name.then(|| (name.to_owned(), value.to_owned()))
}

/// The variables of `--export=ALL,A=1,B`, and the names whose values only the submitting shell knows.
pub fn exported(list: &str) -> (Vec<Variable>, Vec<&str>) {
    let (mut given, mut names) = (Vec::new(), Vec::new());
    for part in list.split(',').filter(|part| !part.is_empty()) {
        match assignment(part) {
            Some(variable) => given.push(variable),
            None if ["ALL", "NONE", "NIL"].contains(&part.to_ascii_uppercase().as_str()) => {}
            None => names.push(part),
        }
    }
    (given, names)
}

/// What is said of a name without a value.
pub fn without_value(name: &str) -> String {
    format!("{name} has its value in the shell that submits: give it in env of the template")
}

/// Each variable once, with its last value, without those that the operator sets.
pub fn last_of_each(env: Vec<Variable>, notes: &mut Notes) -> Vec<Variable> {
    let mut kept: Vec<Variable> = Vec::new();
    for (name, value) in env {
        if launch::OWN_VARIABLES.contains(&name.as_str()) {
            notes.changed(name, "is set by the operator for each attempt");
            continue;
        }
        kept.retain(|(other, _)| *other != name);
        kept.push((name, value));
    }
    kept
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn variables_are_found_by_their_whole_names() {
        for (line, names) in [
            ("cd $SLURM_SUBMIT_DIR/${SLURM_JOBID:-0}", vec!["SLURM_SUBMIT_DIR", "SLURM_JOBID"]),
            ("n=$((SLURM_NTASKS_PER_NODE * 2))", vec!["SLURM_NTASKS_PER_NODE"]),
            ("os.environ[\"SLURM_PROCID\"]", vec!["SLURM_PROCID"]),
            ("${SLURM_X=1} [ $SLURM_Y == 2 ]", vec!["SLURM_X", "SLURM_Y"]),
            ("export SLURM_CPU_BIND=none MY_SLURM_X=$MY_SLURM_X SLURM_ é", vec![]),
        ] {
            assert_eq!(used(line), names, "{line}");
        }
    }

    #[test]
    fn names_without_a_value_are_kept_apart() {
        let (given, names) = exported("ALL,DATA=/data/imagenet,HOME,,none,1A=2");
        assert_eq!(given, [("DATA".to_owned(), "/data/imagenet".to_owned())]);
        assert_eq!(names, ["HOME", "1A=2"]);
    }
}
