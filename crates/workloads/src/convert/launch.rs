//! How a program is started: what of the launcher's flags the operator sets itself, and what cannot follow a plan.

use serde_json::Value;

use super::notes::Notes;

/// Launchers that read `PET_*`.
const LAUNCHERS: [&str; 3] = ["torchrun", "torch.distributed.run", "torch.distributed.launch"];
/// Their flags that say where the others are, with `-` for `_`; a value follows.
const FLAGS: [&str; 8] = [
    "nnodes",
    "nproc-per-node",
    "node-rank",
    "master-addr",
    "master-port",
    "rdzv-backend",
    "rdzv-endpoint",
    "rdzv-id",
];
/// The one of them without a value.
const ALONE: &str = "standalone";
/// Flags of theirs that stay and take no value.
const SWITCHES: [&str; 6] = ["m", "module", "no-python", "run-path", "use-env", "virtual-local-rank"];
/// Programs that start others with what is around them.
const STARTERS: &str = "conda dumb-init env ionice ltrace mamba micromamba ncu nice nohup nsys numactl pdm poetry \
    setsid srun stdbuf strace taskset time timeout tini uv xvfb-run";
/// Programs that start processes by options of their own.
const PROCESSES: &str = "accelerate colossalai composer fabric lightning llamafactory-cli ray torchx";
/// Programs that start processes on the hosts of a file.
const HOST_FILES: &str = "deepspeed horovodrun ibrun jsrun mpiexec mpirun prun";
/// Programs that start containers on the nodes of other clusters.
pub const CONTAINER_LAUNCHERS: &str = "singularity apptainer shifter enroot podman-hpc";
/// Variables that the operator sets.
pub const OWN_VARIABLES: [&str; 10] = [
    "MASTER_ADDR",
    "MASTER_PORT",
    "RANK",
    "WORLD_SIZE",
    "NODE_RANK",
    "PET_NNODES",
    "PET_NPROC_PER_NODE",
    "PET_NODE_RANK",
    "PET_MASTER_ADDR",
    "PET_MASTER_PORT",
];

/// Whether these words start a program by torchrun.
pub fn is_torchrun(words: &[String]) -> bool {
    words.iter().take(6).any(|word| LAUNCHERS.contains(&base(word)))
        || words.iter().any(|word| word.contains("torchrun ") || word.contains("torch.distributed.run "))
}

/// Removes the launcher's flags that the operator sets through the environment. Only words before the program's own are touched.
pub fn without_launcher_flags(words: &[String], field: &str, notes: &mut Notes) -> Vec<String> {
    let (kept, removed) = split_launcher_flags(words);
    if !removed.is_empty() {
        notes.changed(field, format!("{} removed: torchrun reads them from PET_*", removed.join(" ")));
    }
    kept
}

/// Splits a command into its words without the launcher's flags, and these flags.
fn split_launcher_flags(words: &[String]) -> (Vec<String>, Vec<String>) {
    let Some(at) = words.iter().position(|word| LAUNCHERS.contains(&base(word))) else {
        return (words.to_vec(), Vec::new());
    };
    let (mut kept, mut removed) = (words[..=at].to_vec(), Vec::new());
    let mut rest = words[at + 1..].iter();
    while let Some(word) = rest.next() {
        if !word.starts_with('-') {
            kept.push(word.clone());
            break;
        }
        let flag = word.trim_start_matches('-').split('=').next().unwrap_or_default().replace('_', "-");
        let flag = flag.as_str();
        let to = if flag == ALONE || FLAGS.contains(&flag) { &mut removed } else { &mut kept };
        to.push(word.clone());
        // A value of a flag is not the program: `--max_restarts 3`.
        if !word.contains('=') && flag != ALONE && !SWITCHES.contains(&flag) {
            to.extend(rest.next().cloned());
        }
    }
    kept.extend(rest.cloned());
    (kept, removed)
}

/// Texts of a list.
pub fn words(value: Option<&Value>) -> Vec<String> {
    let items = value.and_then(Value::as_array).map(Vec::as_slice).unwrap_or_default();
    items.iter().filter_map(Value::as_str).map(str::to_owned).collect()
}

/// Notes what of a program's start cannot follow the number of GPUs that a plan gives. `each` is the GPUs that one worker had, `total`
/// the most GPUs of the TrainingJob: a plan may give all of them on one node.
pub fn check(words: &[String], each: i64, total: i64, field: &str, notes: &mut Notes) {
    // Beside torchrun, python prepares: `python -m pip install`.
    let several = (total > 1 && !is_torchrun(words)).then_some(each);
    let mut noted = false;
    for command in commands(words) {
        noted |= check_command(&command, several, field, notes);
        let (_, flags) = split_launcher_flags(&command);
        if shell_script(words).is_some() && !flags.is_empty() {
            let flags = flags.join(" ");
            notes.lost(
                field,
                format!("{flags} in the text for the shell: remove it, torchrun reads it from PET_*"),
            );
        }
    }
    if total > each && several.is_some() && !noted && !words.is_empty() {
        notes.lost(
            field,
            "a plan may give a worker several GPUs of one node: the program must start a process for each, as torchrun does",
        );
    }
}

/// The text that a shell gets with `-c`, also where another program starts the shell.
fn shell_script(words: &[String]) -> Option<&str> {
    let shell = |word: &String| ["sh", "bash", "dash", "ash", "zsh"].contains(&base(word));
    let started = || is_among(STARTERS, base(&words[0]));
    let at = words.iter().position(shell).filter(|at| *at == 0 || started())?;
    let mut rest = words.iter().skip(at + 1);
    let takes_script =
        |word: &String| word.starts_with('-') && !word.starts_with("--") && word.ends_with('c');
    rest.any(takes_script).then(|| rest.find(|word| *word != "--"))?.map(String::as_str)
}

/// The commands that these words run: those of a shell's text one by one.
fn commands(words: &[String]) -> Vec<Vec<String>> {
    let Some(script) = shell_script(words) else { return vec![program(words)] };
    let lines: Vec<String> =
        script.replace("\\\n", " ").lines().map(|line| without_comment(line).replace(';', " ; ")).collect();
    let lines = lines.join(" ; ");
    let all = shlex::split(&lines).unwrap_or_else(|| lines.split_whitespace().map(str::to_owned).collect());
    let parts = all.split(|word| [";", "&&", "||", "|", "&"].contains(&word.as_str()));
    parts.map(program).filter(|part| !part.is_empty()).collect()
}

/// A line up to a `#` that begins a word outside of quotes.
pub fn without_comment(line: &str) -> &str {
    let (mut quote, mut before) = (None, ' ');
    for (at, c) in line.char_indices() {
        match quote {
            None if c == '#' && (before.is_whitespace() || before == ';') => return &line[..at],
            None if (c == '\'' || c == '"') && before != '\\' => quote = Some(c),
            Some(open) if c == open && before != '\\' => quote = None,
            _ => {}
        }
        before = c;
    }
    line
}

/// A command without the words before its program: words of the shell, assignments of variables, and programs that only start others.
fn program(words: &[String]) -> Vec<String> {
    let is_name = |text: &str| text.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_');
    let prepares = |word: &&String| {
        ["exec", "if", "then", "else", "elif", "while", "do", "!", "{"].contains(&word.as_str())
            || word.split_once('=').is_some_and(|(name, _)| is_name(name))
    };
    let words: Vec<String> = words.iter().skip_while(prepares).cloned().collect();
    let starter = words.first().is_some_and(|word| is_among(STARTERS, base(word)));
    let program = |word: &String| {
        let name = base(word);
        name.starts_with("python")
            || LAUNCHERS.contains(&name)
            || is_among(PROCESSES, name)
            || is_among(HOST_FILES, name)
    };
    if !starter {
        return words;
    }
    let rest = words.get(1..).unwrap_or_default();
    if let Some(at) = rest.iter().position(program) {
        return rest[at..].to_vec();
    }
    // `uv run train.py`
    match rest.iter().position(|word| word.ends_with(".py")) {
        Some(at) => std::iter::once("python".to_owned()).chain(rest[at..].iter().cloned()).collect(),
        None => self::program(rest),
    }
}

/// Whether a list of words has this one.
pub fn is_among(list: &str, word: &str) -> bool {
    list.split(' ').any(|other| other == word)
}

/// The last part of a path.
pub fn base(word: &str) -> &str {
    word.rsplit('/').next().unwrap_or_default()
}

/// Notes why a command does not use the GPUs of its worker, and whether it does so. `each`: GPUs that one worker had, where a program
/// must use several.
fn check_command(words: &[String], each: Option<i64>, field: &str, notes: &mut Notes) -> bool {
    let first = words.first().map(|word| base(word)).unwrap_or_default();
    // A text of several lines after -c is a program; one of a line asks for a version.
    let script = words.iter().any(|word| word.contains(".py") || word == "-m" || word.contains('\n'));
    let text = match each {
        Some(2..) if first.starts_with("python") && script => {
            "python starts one process, which mostly uses one GPU: start the program with torchrun".to_owned()
        }
        Some(_) if first.starts_with("python") && script => {
            "python starts one process for each worker, and a plan may give a worker several GPUs of one node: start the program with \
             torchrun"
                .to_owned()
        }
        _ if is_among(PROCESSES, first) => {
            format!("{first} does not read PET_*: start the program with torchrun (docs/frameworks.md)")
        }
        _ if is_among(HOST_FILES, first) => {
            format!("{first} needs a host file, which there is none of: start the program with torchrun")
        }
        _ => match container_launcher(words) {
            Some(launcher) => {
                format!("{launcher} is not in an image: give its image with --image, and start the program without it")
            }
            None => return false,
        },
    };
    notes.lost(field, text);
    true
}

/// The program that would start a container, if a command has one: `srun singularity exec image.sif python train.py`.
fn container_launcher(words: &[String]) -> Option<&str> {
    let launcher = |word: &String| CONTAINER_LAUNCHERS.split(' ').find(|name| *name == base(word));
    let starts = |word: Option<&String>| word.is_some_and(|word| ["exec", "run"].contains(&word.as_str()));
    let first = words.first().and_then(launcher);
    first.or_else(|| {
        let mut at = words.iter().enumerate();
        at.find_map(|(at, word)| launcher(word).filter(|_| starts(words.get(at + 1))))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(text: &str) -> String {
        let words: Vec<String> = text.split(' ').map(str::to_owned).collect();
        without_launcher_flags(&words, "command", &mut Notes::default()).join(" ")
    }

    #[test]
    fn flags_that_the_operator_sets_are_removed_and_the_programs_own_stay() {
        assert_eq!(
            of("torchrun --nnodes=2 --nproc_per_node 8 train.py --nnodes=3"),
            "torchrun train.py --nnodes=3"
        );
        assert_eq!(
            of("python -m torch.distributed.run --standalone --max_restarts 3 -m my.module -x"),
            "python -m torch.distributed.run --max_restarts 3 -m my.module -x"
        );
        assert_eq!(of("python train.py --node_rank 1"), "python train.py --node_rank 1");
        assert_eq!(of("torchrun --nnodes"), "torchrun");
        assert_eq!(
            of("python -m torch.distributed.launch --use_env train.py --master_port 1"),
            "python -m torch.distributed.launch --use_env train.py --master_port 1"
        );
        assert_eq!(
            of("torchrun --virtual-local-rank --nproc-per-node 8 train.py"),
            "torchrun --virtual-local-rank train.py"
        );
    }

    #[test]
    fn a_program_without_torchrun_on_several_gpus_is_noted() {
        let lost = |text: &str, each, total| {
            let mut notes = Notes::default();
            let words: Vec<String> = text.split(' ').map(str::to_owned).collect();
            check(&words, each, total, "command", &mut notes);
            notes.into_vec().pop().map_or(String::new(), |note| note.text)
        };
        assert!(lost("python train.py", 4, 4).starts_with("python starts one process, which"));
        assert!(lost("python train.py", 1, 4).starts_with("python starts one process for each worker"));
        assert_eq!((lost("python train.py", 1, 1), lost("torchrun train.py", 4, 4)), Default::default());
        assert!(!lost("mpirun -np 4 x", 1, 1).is_empty() && !lost("mpiexec -n 4 x", 1, 1).is_empty());
        for line in
            ["singularity --nv exec a.sif x", "apptainer run a.sif", "srun -n 1 /opt/apptainer exec a.sif x"]
        {
            assert!(lost(line, 1, 1).contains("is not in an image"), "{line}");
        }
        assert_eq!(lost("ls /opt/singularity x exec", 1, 1), "");
        assert!(!lost("accelerate launch x.py", 1, 1).is_empty());
        assert!(lost("python3 -m my.train", 4, 4).starts_with("python starts one process, which"));
        assert_eq!(lost("python3 -m torch.distributed.run train.py", 4, 4), "");
        assert!(lost("python3 -c import\nmy", 4, 4).starts_with("python starts one process, which"));
        assert_eq!(lost("python3 -c import", 4, 4), "");
    }

    #[test]
    fn the_commands_of_a_shell_are_looked_at_one_by_one() {
        let lost = |script: &str| {
            let mut notes = Notes::default();
            let words = ["/bin/bash", "-ec", script].map(str::to_owned);
            check(&words, 4, 4, "args", &mut notes);
            notes.into_vec().pop().map_or(String::new(), |note| note.text)
        };
        for alone in [
            "cd /work && python train.py",
            "pip install x; A=1 exec python3 -m my.train",
            "set -e\npython a.py \\\n  --lr 1",
        ] {
            assert!(lost(alone).starts_with("python starts one process"), "{alone}");
        }
        assert!(lost("cd /work && accelerate launch x.py").starts_with("accelerate does not read"));
        let flags = "--nnodes=2 in the text for the shell: remove it, torchrun reads it from PET_*";
        assert_eq!(lost("pip install x && torchrun --nnodes=2 train.py"), flags);
        for fine in [
            "torchrun train.py",
            "echo \"python's\" && torchrun train.py",
            "python -m pip install x && torchrun train.py",
            "echo 'unclosed",
            "ls | sort",
            "",
        ] {
            assert_eq!(lost(fine), "", "{fine}");
        }
    }
}
