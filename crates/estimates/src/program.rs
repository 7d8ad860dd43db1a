//! The program of a run, without what changes from run to run: runs of one program share a TrainingProfile.
//!
//! A program is the image, the command line, the literal environment and the owner of the run. Left out are
//! seeds, learning rates and other parameters that do not change the speed, output folders, names and numbers
//! of runs, and how the program is started on several GPUs. All else distinguishes programs: two runs that
//! differ in a word that is not known here have a profile each. A missed match costs some accuracy at the
//! first run, a wrong one misleads plans.
//!
//! Pure, and bounded by the size of a template.

use ring::digest::{SHA256, digest};

/// Longest readable part of a profile's name, bytes.
const MAX_STEM: usize = 40;
/// Longest description of a program, bytes.
pub const MAX_DESCRIPTION: usize = 1_024;

/// Names of arguments and variables that change from run to run, or that do not change the speed. With `_` for
/// `-`, and in lower case: of one letter that one alone is meant, since `-O` is another argument than `-o`.
const VOLATILE: &[&str] = &[
    // where results go
    "output",
    "o",
    "out",
    "output_dir",
    "out_dir",
    "outdir",
    "output_path",
    "save",
    "save_dir",
    "save_path",
    "savedir",
    "results_dir",
    "result_dir",
    "work_dir",
    "workdir",
    "exp_dir",
    "run_dir",
    "default_root_dir",
    "cache_dir",
    "log_dir",
    "logdir",
    "log_file",
    "log_path",
    "logging_dir",
    "ckpt",
    "ckpt_dir",
    "ckpt_path",
    "checkpoint",
    "checkpoint_dir",
    "checkpoint_path",
    "resume",
    "resume_from",
    "resume_from_checkpoint",
    "resume_path",
    "dir",
    // what a run is called
    "name",
    "run",
    "run_name",
    "run_id",
    "runid",
    "exp",
    "exp_name",
    "experiment",
    "experiment_name",
    "experiment_id",
    "trial",
    "trial_id",
    "trial_name",
    "job_name",
    "job_id",
    "group",
    "tag",
    "tags",
    "notes",
    "project",
    "user",
    "timestamp",
    "date",
    // parameters of the optimizer
    "learning_rate",
    "lr0",
    "lrf",
    "warmup",
    "warmup_steps",
    "warmup_epochs",
    "warmup_ratio",
    "weight_decay",
    "wd",
    "momentum",
    "betas",
    "beta1",
    "beta2",
    "adam_beta1",
    "adam_beta2",
    "adam_epsilon",
    "eps",
    "epsilon",
    "dropout",
    "label_smoothing",
    "gamma",
    "decay",
    "decay_rate",
    "clip",
    "clip_grad",
    "grad_clip",
    "max_grad_norm",
    "patience",
    // how long it runs
    "epochs",
    "num_epochs",
    "n_epochs",
    "max_epochs",
    "num_train_epochs",
    // on which GPUs it runs, and how its processes meet
    "gpus",
    "ngpus",
    "n_gpus",
    "num_gpus",
    "devices",
    "nnodes",
    "num_nodes",
    "nproc",
    "nproc_per_node",
    "num_processes",
    "num_machines",
    "node_rank",
    "machine_rank",
    "local_rank",
    "rank",
    "world_size",
    "master_addr",
    "master_port",
    "main_process_ip",
    "main_process_port",
    "rdzv_endpoint",
    "rdzv_id",
    "rdzv_backend",
    "rdzv_conf",
    "host",
    "hostname",
    "port",
    // what it prints
    "log_interval",
    "log_every",
    "logging_steps",
    "print_freq",
    "verbose",
    "v",
];
/// Those of [`VOLATILE`] that usually have no value: the next word may be the script or the model.
const SWITCHES: &[&str] = &["verbose", "v"];
/// Parts of a name, between `_`, that make it one of [`VOLATILE`].
const VOLATILE_PARTS: &[&str] = &["seed", "lr", "wandb", "mlflow", "comet", "neptune", "tensorboard"];

/// The program of a job.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Program {
    /// Name of the TrainingProfile that its runs share.
    pub profile: String,
    /// What was compared, one fact on each line, at most 1024 bytes.
    pub description: String,
}

/// What is known of a run before it starts.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RunDescription<'a> {
    /// Its name; often generated.
    pub name: &'a str,
    /// Kind and name of its controller.
    pub owner: Option<(&'a str, &'a str)>,
    /// Image of its training container.
    pub image: &'a str,
    /// Command and arguments.
    pub command: Vec<&'a str>,
    /// Literal variables of the environment.
    pub environment: Vec<(&'a str, &'a str)>,
}

impl RunDescription<'_> {
    /// The run's program.
    pub fn program(&self) -> Program {
        let mut facts = vec![format!("image {}", image(self.image))];
        if let Some((kind, owner)) = self.owner {
            facts.push(format!("owner {kind} {}", without_suffix(&stable(owner, self.name))));
        }
        let words = command_line(&self.command);
        let kept = without_volatile(&words, self.name);
        facts.extend(kept.iter().map(|word| format!("word {word}")));
        facts.extend(self.facts_of_environment());
        let hash = digest(&SHA256, facts.join("\n").as_bytes());
        let hash: String = hash.as_ref().iter().take(5).map(|byte| format!("{byte:02x}")).collect();
        Program {
            profile: format!("{}-{hash}", stem(&kept, self.image)),
            description: bounded(&facts.join("\n")),
        }
    }

    /// The variables that matter, sorted by name.
    fn facts_of_environment(&self) -> Vec<String> {
        let all = self.environment.iter().filter(|(name, _)| !is_volatile(name));
        let mut facts: Vec<String> =
            all.map(|(name, value)| format!("env {name}={}", stable(value, self.name))).collect();
        facts.sort_unstable();
        facts
    }
}

/// The words of command and arguments. A script after `sh -c` is split like a shell does.
fn command_line(all: &[&str]) -> Vec<String> {
    let mut words = Vec::new();
    let mut script = false;
    for word in all {
        if std::mem::take(&mut script) {
            let split = shlex::split(word);
            words.extend(split.unwrap_or_else(|| word.split_whitespace().map(str::to_owned).collect()));
            continue;
        }
        let shell = words.last().is_some_and(|last: &String| {
            matches!(last.rsplit('/').next(), Some("sh" | "bash" | "ash" | "dash" | "zsh"))
        });
        script = shell && word.starts_with('-') && word.ends_with('c');
        words.push((*word).to_owned());
    }
    words
}

/// The words without volatile arguments, each in its stable form.
fn without_volatile(words: &[String], own_name: &str) -> Vec<String> {
    let mut kept = Vec::new();
    let mut rest = words.iter().peekable();
    while let Some(word) = rest.next() {
        let flag = word.starts_with('-') && word.len() > 1;
        match word.split_once('=') {
            Some((name, _)) if is_name(name) && is_volatile(name) => {}
            Some((name, value)) => kept.push(format!("{name}={}", stable(value, own_name))),
            None if flag && is_volatile(word) => {
                // Its value is the next word, unless that is an argument of its own. A switch may have a number.
                let switch = SWITCHES.contains(&own_part(word).as_str());
                rest.next_if(|next| next.parse::<f64>().is_ok() || !switch && !next.starts_with('-'));
            }
            None => kept.push(stable(word, own_name)),
        }
    }
    kept
}

/// Whether what stands before `=` can be the name of an argument, of Hydra's too (`+optimizer.lr`).
fn is_name(text: &str) -> bool {
    !text.is_empty() && text.chars().all(|c| c.is_ascii_alphanumeric() || "-_.+~/".contains(c))
}

fn is_volatile(name: &str) -> bool {
    let name = own_part(name);
    VOLATILE.contains(&name.as_str()) || name.split('_').any(|part| VOLATILE_PARTS.contains(&part))
}

/// The last part of an argument's name, as in [`VOLATILE`].
fn own_part(name: &str) -> String {
    let name = name.trim_start_matches(['-', '+', '~']);
    let name = name.rsplit(['.', '/']).next().unwrap_or_default();
    if name.len() == 1 { name.to_owned() } else { name.to_ascii_lowercase().replace('-', "_") }
}

/// A word whose generated parts, and the job's own name, are `*`. Whole numbers stay: they may be sizes.
fn stable(word: &str, own_name: &str) -> String {
    let text = if own_name.len() > 3 { word.replace(own_name, "*") } else { word.to_owned() };
    if text.bytes().all(|byte| byte.is_ascii_digit()) {
        return text;
    }
    let is_separator = |c: char| "-_/.:@+, ".contains(c);
    let parts: Vec<&str> = text.split(is_separator).collect();
    let mut separators = text.chars().filter(|c| is_separator(*c));
    let mut out = String::with_capacity(text.len());
    let mut at = 0;
    while at < parts.len() {
        let (taken, generated) = generated(&parts[at..]);
        for part in &parts[at..at + taken] {
            out.push_str(if generated { "*" } else { part });
            out.extend(separators.next());
        }
        at += taken;
    }
    out
}

/// How many of the next parts belong together, and whether a program made them up: UUIDs, dates, long numbers,
/// hexadecimal hashes.
fn generated(parts: &[&str]) -> (usize, bool) {
    let hex = |part: &str| !part.is_empty() && part.bytes().all(|b| b.is_ascii_hexdigit());
    let digits = |part: &str, length: usize| part.len() == length && part.bytes().all(|b| b.is_ascii_digit());
    let uuid = [8, 4, 4, 4, 12];
    if parts.len() >= 5 && parts.iter().zip(uuid).all(|(part, length)| part.len() == length && hex(part)) {
        return (5, true);
    }
    if let [year, month, day, ..] = parts
        && digits(year, 4)
        && year.starts_with("20")
        && digits(month, 2)
        && digits(day, 2)
    {
        return (3, true);
    }
    let part = parts[0];
    let (numbers, letters) =
        (part.bytes().any(|b| b.is_ascii_digit()), part.bytes().any(|b| b.is_ascii_alphabetic()));
    let long_number = part.len() >= 6 && numbers && !letters;
    let stamp = part
        .split_once(['T', 't'])
        .is_some_and(|(day, time)| digits(day, 8) && digits(&time.replace(['Z', 'z'], ""), 6));
    (1, long_number || stamp || part.len() >= 7 && hex(part) && numbers && letters)
}

/// A name without the random suffixes that Kubernetes appends (`-x7k2p`, `-5d4f8b7c9-x7k2p`).
fn without_suffix(name: &str) -> &str {
    const ALPHABET: &str = "bcdfghjklmnpqrstvwxz2456789";
    let random = |part: &str| {
        (part.len() == 5 || part.len() == 10 || part.len() == 9)
            && part.chars().all(|c| ALPHABET.contains(c))
            && part.bytes().any(|b| b.is_ascii_digit())
    };
    let mut name = name;
    while let Some((head, last)) = name.rsplit_once('-').filter(|(_, last)| *last == "*" || random(last)) {
        let _ = last;
        name = head;
    }
    name
}

/// An image without its digest, and without a tag that a build made up.
fn image(image: &str) -> String {
    let image = image.split('@').next().unwrap_or_default();
    match image.rsplit_once(':') {
        Some((repository, tag)) if !tag.contains('/') => format!("{repository}:{}", stable(tag, "")),
        _ => image.to_owned(),
    }
}

/// The readable part of a profile's name: the script, else the module, else the image.
fn stem(words: &[String], image: &str) -> String {
    let script = words.iter().find_map(|word| word.strip_suffix(".py").or_else(|| word.strip_suffix(".sh")));
    let module = || words.windows(2).find(|pair| pair[0] == "-m").map(|pair| pair[1].as_str());
    let image = image.split('@').next().unwrap_or_default().rsplit('/').next().unwrap_or_default();
    let image = image.split(':').next().unwrap_or_default();
    let found = script.or_else(module).unwrap_or(image);
    let last = found.rsplit('/').next().unwrap_or_default().to_ascii_lowercase();
    let clean: String =
        last.chars().map(|c| if c.is_ascii_alphanumeric() { c } else { '-' }).take(MAX_STEM).collect();
    let clean = clean.trim_matches('-');
    if clean.is_empty() { "program".into() } else { clean.to_owned() }
}

fn bounded(text: &str) -> String {
    let mut end = text.len().min(MAX_DESCRIPTION);
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    text[..end].to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(name: &str, line: &str, owner: Option<(&str, &str)>, environment: &[(&str, &str)]) -> Program {
        let command = line.split(' ').collect();
        RunDescription { name, owner, image: "lab/train:2", command, environment: environment.to_vec() }
            .program()
    }

    #[test]
    fn names_seeds_and_suffixes_do_not_distinguish_and_models_do() {
        let one = of(
            "bert-x7",
            "python t.py --model bert --seed 1 --out /o/bert-x7",
            Some(("Trial", "s-x7k2p")),
            &[("SEED", "1")],
        );
        let other = of(
            "bert-b2",
            "python t.py --model bert --seed 2 --out /o/bert-b2",
            Some(("Trial", "s-b2c4d")),
            &[("SEED", "2")],
        );
        assert_eq!(one, other);
        let owner = Some(("Trial", "s-x7k2p"));
        for different in [
            of("bert-x7", "python t.py --model gpt --seed 1", owner, &[]),
            of("bert-x7", "python t.py --model bert --seed 1", Some(("Trial", "other")), &[]),
            of("bert-x7", "python t.py --model bert --seed 1", owner, &[("DATA", "x")]),
        ] {
            assert_ne!(different.profile, one.profile, "{different:?}");
        }
    }

    #[test]
    fn a_switch_leaves_the_script_and_the_model_that_follow_it() {
        let profile = |line: &str| of("a", line, None, &[]).profile;
        for (one, other) in [
            ("python -O bert.py", "python -O gpt.py"),
            ("python -v bert.py", "python -v gpt.py"),
            ("python t.py --verbose resnet50", "python t.py --verbose vit"),
        ] {
            assert_ne!(profile(one), profile(other), "{one}, {other}");
        }
        for (one, other) in [
            ("python t.py -v 1 vit", "python t.py -v 2 vit"),
            ("python t.py --verbose vit", "python t.py vit"),
            ("python t.py -o /a vit", "python t.py -o /b vit"),
        ] {
            assert_eq!(profile(one), profile(other), "{one}, {other}");
        }
    }
}
