//! The program of a job, without what changes from run to run: runs of one program share a TrainingProfile.
//!
//! A program is the image, the command line, the literal environment and the owner of the job. Left out are
//! seeds, learning rates and other parameters that do not change the speed, output folders, names and numbers
//! of runs, and how the program is started on several GPUs. All else distinguishes programs: two runs that
//! differ in a word that is not known here have a profile each. A missed match costs some accuracy at the
//! first run, a wrong one misleads plans.
//!
//! Pure, and bounded by the size of a template.

use andreas_api::slim::SlimTrainingJob;
use k8s_openapi::api::core::v1::Container;
use kube::ResourceExt;
use ring::digest::{SHA256, digest};

/// Longest readable part of a profile's name, bytes.
const MAX_STEM: usize = 40;
/// Longest description of a program, bytes.
const MAX_DESCRIPTION: usize = 1_024;

/// Names of arguments and variables that change from run to run, or that do not change the speed. In lower
/// case, with `_` for `-`.
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

/// The program of the job's training container; `None` without a container.
pub fn program(job: &SlimTrainingJob) -> Option<Program> {
    let spec = job.spec.template.spec.as_ref()?;
    let name = job.spec.training_container()?;
    let container = spec.containers.iter().find(|container| container.name == name)?;
    let own_name = job.name_any();
    let mut facts = vec![format!("image {}", image(container.image.as_deref().unwrap_or_default()))];
    if let Some(owner) = job.metadata.owner_references.iter().flatten().find(|o| o.controller == Some(true)) {
        facts.push(format!("owner {} {}", owner.kind, without_suffix(&stable(&owner.name, &own_name))));
    }
    let words = command_line(container);
    let kept = without_volatile(&words, &own_name);
    facts.extend(kept.iter().map(|word| format!("word {word}")));
    facts.extend(environment(container, &own_name));
    let hash = digest(&SHA256, facts.join("\n").as_bytes());
    let hash: String = hash.as_ref().iter().take(5).map(|byte| format!("{byte:02x}")).collect();
    Some(Program {
        profile: format!("{}-{hash}", stem(&kept, container)),
        description: bounded(&facts.join("\n")),
    })
}

/// The literal variables that matter, sorted by name.
fn environment(container: &Container, own_name: &str) -> Vec<String> {
    let variables = container.env.iter().flatten();
    let mut facts: Vec<String> = variables
        .filter(|variable| !is_volatile(&variable.name))
        .filter_map(|variable| Some((variable.name.as_str(), variable.value.as_deref()?)))
        .map(|(name, value)| format!("env {name}={}", stable(value, own_name)))
        .collect();
    facts.sort_unstable();
    facts
}

/// The words of command and arguments. A script after `sh -c` is split like a shell does.
fn command_line(container: &Container) -> Vec<String> {
    let all: Vec<&String> =
        container.command.iter().flatten().chain(container.args.iter().flatten()).collect();
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
        words.push(word.clone());
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
                // Its value is the next word, unless that is an argument of its own.
                rest.next_if(|next| !next.starts_with('-') || next.parse::<f64>().is_ok());
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
    let name = name.trim_start_matches(['-', '+', '~']).to_ascii_lowercase().replace('-', "_");
    let name = name.rsplit(['.', '/']).next().unwrap_or_default();
    VOLATILE.contains(&name) || name.split('_').any(|part| VOLATILE_PARTS.contains(&part))
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
fn stem(words: &[String], container: &Container) -> String {
    let script = words.iter().find_map(|word| word.strip_suffix(".py").or_else(|| word.strip_suffix(".sh")));
    let module = || words.windows(2).find(|pair| pair[0] == "-m").map(|pair| pair[1].as_str());
    let image = container.image.as_deref().unwrap_or_default();
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
    use serde_json::{Value, json};

    use super::*;

    fn job(name: &str, container: Value) -> SlimTrainingJob {
        let mut container = container;
        container["name"] = json!("train");
        serde_json::from_value(json!({
            "metadata": {"name": name, "namespace": "team"},
            "spec": {"template": {"spec": {"containers": [container]}}},
        }))
        .expect("a job")
    }

    /// The profile of a run of a command line in one image.
    fn profile(name: &str, line: &str) -> String {
        let words = shlex::split(line).expect("a command line");
        program(&job(name, json!({"image": "ghcr.io/lab/train:2.3", "command": words})))
            .expect("a program")
            .profile
    }

    /// Command lines of published training scripts, each with another run of the same program.
    const SAME: &[(&str, &str)] = &[
        // transformers, examples/pytorch/language-modeling
        (
            "torchrun run_clm.py --model_name_or_path gpt2 --dataset_name wikitext --dataset_config_name wikitext-2-raw-v1 \
             --per_device_train_batch_size 8 --do_train --output_dir /tmp/test-clm --learning_rate 5e-5 --seed 1",
            "torchrun run_clm.py --model_name_or_path gpt2 --dataset_name wikitext --dataset_config_name wikitext-2-raw-v1 \
             --per_device_train_batch_size 8 --do_train --output_dir /ckpt/run-17 --learning_rate 3e-4 --seed 42",
        ),
        // pytorch/examples, imagenet
        (
            "python main.py -a resnet50 --lr 0.1 --epochs 90 --dist-url tcp://127.0.0.1 --multiprocessing-distributed /data/imagenet",
            "python main.py -a resnet50 --lr 0.05 --epochs 30 --dist-url tcp://127.0.0.1 --multiprocessing-distributed /data/imagenet",
        ),
        // timm
        (
            "torchrun --nproc-per-node=4 train.py /imagenet --model convnext_tiny -b 128 --lr=4e-3 --warmup-epochs 20 --experiment first --output ./out",
            "torchrun --nproc-per-node=8 train.py /imagenet --model convnext_tiny -b 128 --lr=1e-3 --warmup-epochs 5 --experiment second --output ./out2",
        ),
        // nanoGPT: configuration file and overrides
        (
            "python train.py config/train_gpt2.py --batch_size=12 --out_dir=out-1 --wandb_run_name=gpt2-a --compile=True",
            "python train.py config/train_gpt2.py --batch_size=12 --out_dir=out-2 --wandb_run_name=gpt2-b --compile=True",
        ),
        // Hydra
        (
            "python train.py model=vit optimizer.lr=0.001 +trainer.max_epochs=10 seed=1 hydra.run.dir=/runs/2026-01-05/10-00-00",
            "python train.py model=vit optimizer.lr=0.01 +trainer.max_epochs=20 seed=2 hydra.run.dir=/runs/2026-02-07/12-30-01",
        ),
        // detectron2
        (
            "python tools/train_net.py --config-file configs/mask_rcnn_R_50.yaml --num-gpus 8 SOLVER.IMS_PER_BATCH 16 OUTPUT_DIR /out/20260105-101500",
            "python tools/train_net.py --config-file configs/mask_rcnn_R_50.yaml --num-gpus 4 SOLVER.IMS_PER_BATCH 16 OUTPUT_DIR /out/20260207-123001",
        ),
        // a shell in between, data under a generated name, negative and missing values
        (
            "bash -lc 'exec python -m speech.train --data /data/a1b2c3d4e5 --shift -0.5 --beta1 -1 --resume --amp'",
            "bash -lc 'exec python -m speech.train --data /data/0f9e8d7c6b --shift -0.5 --beta1 0.9 --resume --amp'",
        ),
        (
            "python t.py --id 0e4f6c1a-93ba-4be4-8f10-7a2f3a5a1f00",
            "python t.py --id 93be7a10-1111-4be4-8f10-0123456789ab",
        ),
    ];

    #[test]
    fn runs_of_one_program_share_a_profile() {
        for (one, other) in SAME {
            assert_eq!(profile("a-run", one), profile("another", other), "{one}\n{other}");
        }
    }

    #[test]
    fn other_models_data_and_batches_are_other_programs() {
        let lines = [
            "torchrun run_clm.py --model_name_or_path gpt2 --per_device_train_batch_size 8",
            "torchrun run_clm.py --model_name_or_path gpt2-xl --per_device_train_batch_size 8",
            "torchrun run_clm.py --model_name_or_path gpt2 --per_device_train_batch_size 16",
            "torchrun run_mlm.py --model_name_or_path gpt2 --per_device_train_batch_size 8",
            "python main.py -a resnet50 /data/imagenet",
            "python main.py -a resnet18 /data/imagenet",
            "python main.py -a resnet50 /data/coco-2017",
            "python main.py -a resnet50 /data/coco-2014",
            "python train.py --batch-tokens 524288",
            "python train.py --batch-tokens 1048576",
            "python train.py --image-size 224",
            "python train.py --image-size 384",
        ];
        let profiles: std::collections::BTreeSet<String> =
            lines.iter().map(|line| profile("run", line)).collect();
        assert_eq!(profiles.len(), lines.len());
    }

    #[test]
    fn images_environments_and_owners_distinguish_programs_too() {
        let with = |image: &str, env: Value| {
            program(&job("run", json!({"image": image, "args": ["--fast"], "env": env})))
                .expect("a program")
                .profile
        };
        let base = with("lab/bert:2.3", json!([{"name": "MODEL", "value": "base"}]));
        let seeded = json!([{"name": "SEED", "value": "3"}, {"name": "WANDB_RUN_ID", "value": "x"}, {"name": "MODEL", "value": "base"},
            {"name": "TOKEN", "valueFrom": {"secretKeyRef": {"name": "s", "key": "k"}}}]);
        assert_eq!(with("lab/bert:2.3@sha256:00ff", seeded), base);
        assert_ne!(with("lab/bert:2.3", json!([{"name": "MODEL", "value": "large"}])), base);
        assert_ne!(with("lab/resnet:2.3", json!([{"name": "MODEL", "value": "base"}])), base);
        let tagged = |tag: &str| with(&format!("registry:5000/lab/bert:{tag}"), json!([]));
        assert_eq!(tagged("main-3f9a1c2"), tagged("main-77b0e4d"));
        assert_ne!(tagged("v1"), tagged("v2"));

        let owned = |owner: &str| {
            let mut job = job("run", json!({"image": "i"}));
            let owner =
                json!([{"apiVersion": "v1", "kind": "Trial", "name": owner, "uid": "u", "controller": true}]);
            job.metadata.owner_references = serde_json::from_value(owner).expect("owners");
            program(&job).expect("a program").profile
        };
        assert_eq!(owned("search-x7k2p"), owned("search-b2c4d"));
        assert_ne!(owned("search-x7k2p"), owned("other-x7k2p"));
    }

    #[test]
    fn a_profiles_name_can_be_read_and_is_a_name_of_kubernetes() {
        assert!(profile("run", "python /src/Run_CLM.py --x").starts_with("run-clm-"));
        assert!(profile("run", "python -m speech.train").starts_with("speech-train-"));
        assert!(profile("run", "./binary").starts_with("train-"), "by the image");
        let odd = program(&job(
            "run",
            json!({"image": "x/ÄÖ@sha256:1", "args": [format!("{}.py", "é".repeat(900))]}),
        ));
        let odd = odd.expect("a program");
        assert!(
            odd.profile.len() <= 63 && odd.profile.starts_with(|c: char| c.is_ascii_alphanumeric()),
            "{odd:?}"
        );
        assert!(odd.description.len() <= MAX_DESCRIPTION);
        assert_eq!(
            program(&job("run", json!({}))).map(|p| p.profile.len() > 10),
            Some(true),
            "without any word"
        );
    }

    #[test]
    fn the_jobs_own_name_is_no_part_of_its_program() {
        assert_eq!(
            profile("bert-17", "train --save-to /x/bert-17"),
            profile("bert-18", "train --save-to /x/bert-18")
        );
    }
}
