//! Names of arguments and variables that say nothing of the program.
//!
//! Only what is known here is left out: any other name distinguishes programs.

/// Names of arguments and variables that change from run to run, or that do not change the speed. With `_` for
/// `-`, and in lower case: of one letter that one alone is meant, since `-O` is another argument than `-o`.
const VOLATILE: &[&str] = &[
    // where results go
    "output_dir",
    "out_dir",
    "outdir",
    "output_path",
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
    "ckpt_dir",
    "checkpoint_dir",
    "resume",
    "resume_from",
    "resume_from_checkpoint",
    "resume_path",
    // what a run is called
    "run_name",
    "run_id",
    "runid",
    "exp_name",
    "experiment_name",
    "experiment_id",
    "trial_id",
    "trial_name",
    "job_name",
    "job_id",
    "notes",
    "timestamp",
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
/// The same by themselves. Below another word they may name what is trained: `model.name`, `data.dir`.
const NAMES_AND_PLACES: &[&str] = &[
    "output",
    "o",
    "out",
    "save",
    "ckpt",
    "ckpt_path",
    "checkpoint",
    "checkpoint_path",
    "dir",
    "name",
    "run",
    "exp",
    "experiment",
    "trial",
    "group",
    "tag",
    "tags",
    "project",
    "user",
    "date",
];
/// Sections of a configuration in which [`NAMES_AND_PLACES`] are those of the run: `hydra.run.dir`, `logger.name`.
const RUN_SECTIONS: &[&str] = &[
    "checkpoint",
    "ckpt",
    "exp",
    "exp_manager",
    "experiment",
    "hydra",
    "job",
    "log",
    "logger",
    "logging",
    "output",
    "results",
    "run",
    "save",
    "sweep",
    "trial",
];
/// Those of [`VOLATILE`] that usually have no value: the next word may be the script or the model.
const SWITCHES: &[&str] = &["verbose", "v"];
/// Programs that keep records of runs. A name is volatile with one of them as a part, between `_`.
const TRACKERS: &[&str] = &["wandb", "mlflow", "comet", "neptune", "tensorboard"];
/// Other parts of a name that make it volatile.
const VOLATILE_PARTS: &[&str] = &["seed", "lr"];

/// Whether what stands before `=` can be the name of an argument, of Hydra's too (`+optimizer.lr`).
pub(super) fn is_name(text: &str) -> bool {
    !text.is_empty() && text.chars().all(|c| c.is_ascii_alphanumeric() || "-_.+~/".contains(c))
}

/// Whether an argument or a variable of this name changes from run to run, or does not change the speed.
pub(super) fn is_volatile(name: &str) -> bool {
    let own = own_part(name);
    if NAMES_AND_PLACES.contains(&own.as_str()) {
        let of_run =
            |section: String| RUN_SECTIONS.contains(&section.as_str()) || has_part(&section, TRACKERS);
        return section(name).is_none_or(of_run);
    }
    VOLATILE.contains(&own.as_str()) || has_part(&own, VOLATILE_PARTS) || has_part(&own, TRACKERS)
}

fn has_part(name: &str, parts: &[&str]) -> bool {
    name.split('_').any(|part| parts.contains(&part))
}

/// Whether a volatile argument of this name usually has no value.
pub(super) fn is_switch(name: &str) -> bool {
    let own = own_part(name);
    let own = own.as_str();
    let before = ["use_", "no_", "enable_", "disable_", "with_", "log_"];
    let tool = before.iter().find_map(|word| own.strip_prefix(*word)).unwrap_or(own);
    let after = ["_offline", "_online", "_enabled", "_disabled"];
    let tool = after.iter().find_map(|word| tool.strip_suffix(*word)).unwrap_or(tool);
    SWITCHES.contains(&own) || TRACKERS.contains(&tool)
}

/// Whether a word can be the value of a switch: a number, `true` or `false`.
pub(super) fn is_switch_value(word: &str) -> bool {
    word.parse::<f64>().is_ok() || word.eq_ignore_ascii_case("true") || word.eq_ignore_ascii_case("false")
}

/// The last part of an argument's name, as in [`VOLATILE`].
fn own_part(name: &str) -> String {
    parts(name).next().unwrap_or_default()
}

/// The section of a configuration that an argument belongs to. Lightning writes `init_args` between the two.
fn section(name: &str) -> Option<String> {
    parts(name).skip(1).find(|part| part != "init_args")
}

/// The parts of an argument's name as in [`VOLATILE`], the last one first.
fn parts(name: &str) -> impl Iterator<Item = String> {
    name.trim_start_matches(['-', '+', '~']).rsplit(['.', '/']).map(|part| {
        if part.len() == 1 { part.to_owned() } else { part.to_ascii_lowercase().replace('-', "_") }
    })
}
