//! `kubectl-andreas submit`: a TrainingJob from a few flags.

mod flags;

use andreas_api::names::{ANNOTATION_USER, CHECKPOINT_FOLDER};
use andreas_api::slim::SlimTrainingJob;
use anyhow::{Result, bail};
use clap::{Args, ValueEnum};
use k8s_openapi::api::authentication::v1::SelfSubjectReview;
use serde_json::{Map, Value, json};

use self::flags::{Claim, Gpus, Variable};
use crate::cluster::{Cluster, ConnectArgs, block_on};
use crate::exit::Usage;
use crate::name;
use crate::output::{self, Format, OutputArgs};
use crate::when::{self, Deadline};

/// Name of the container that trains.
const CONTAINER: &str = "train";

/// Submit: create a TrainingJob from a few flags.
///
/// The command after -- runs in every worker. Start programs for several GPUs with torchrun: it reads the number of GPUs and workers
/// from the environment. --dry-run=client prints the manifest and asks no cluster. Needs the right to create TrainingJobs.
#[derive(Debug, Args)]
pub struct SubmitArgs {
    /// Name of the TrainingJob
    #[arg(value_name = "NAME", value_parser = flags::name)]
    name: String,
    /// Command and arguments; the image's own without
    #[arg(last = true, value_name = "COMMAND")]
    command: Vec<String>,
    /// Image of the container
    #[arg(long, value_name = "IMAGE", value_parser = name::non_empty)]
    image: String,
    /// GPUs in total: a number, or a range such as 1-8
    #[arg(long, value_name = "MIN-MAX", default_value = "1", value_parser = flags::gpus)]
    gpus: Gpus,
    /// Maximum nodes
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(i32).range(1..=512))]
    nodes: i32,
    /// GPU types allowed, separated by commas; any without
    #[arg(long, value_name = "TYPE", value_delimiter = ',', value_parser = name::non_empty)]
    types: Vec<String>,
    /// Deadline: an instant such as 2027-01-31T18:00:00Z, or a time from now such as 36h
    #[arg(long, value_name = "WHEN", value_parser = when::deadline)]
    deadline: Option<Deadline>,
    /// Weight, 1 to 1000; 10 without
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(i32).range(1..=1000))]
    weight: Option<i32>,
    /// Length in units of progress; 1 without
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(i32).range(1..=10_000_000))]
    epochs: Option<i32>,
    /// TrainingProfile that describes the run
    #[arg(long, value_name = "NAME", value_parser = name::object)]
    profile: Option<String>,
    /// Environment variable; may be repeated
    #[arg(long, value_name = "NAME=VALUE", value_parser = flags::variable)]
    env: Vec<Variable>,
    /// CPU of each worker, for example 4 or 500m
    #[arg(long, value_name = "QUANTITY", value_parser = flags::quantity)]
    cpu: Option<String>,
    /// Memory of each worker, for example 16Gi
    #[arg(long, value_name = "QUANTITY", value_parser = flags::quantity)]
    memory: Option<String>,
    /// PersistentVolumeClaim for checkpoints, with its folder; /checkpoint without
    #[arg(long, value_name = "CLAIM[:PATH]", value_parser = flags::claim)]
    checkpoint: Option<Claim>,
    /// PersistentVolumeClaim to mount; may be repeated
    #[arg(long, value_name = "CLAIM:PATH", value_parser = flags::claim)]
    volume: Vec<Claim>,
    /// Failures of the program that are tried again, 0 to 100; 3 without
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(i32).range(0..=100))]
    retries: Option<i32>,
    /// Longest run of one attempt, for example 48h
    #[arg(long, value_name = "TIME", value_parser = when::duration)]
    max_run_time: Option<andreas_api::DurationText>,
    /// Create it held, until it is resumed
    #[arg(long)]
    suspend: bool,
    /// client: print the manifest and ask no cluster; server: let the API server check it and keep nothing
    #[arg(long, value_name = "WHERE", num_args = 0..=1, default_missing_value = "client", require_equals = true)]
    dry_run: Option<DryRun>,
    /// Namespace; that of the context without
    #[arg(long, short, value_name = "NAME", help_heading = "Cluster", value_parser = name::namespace)]
    namespace: Option<String>,
    #[command(flatten)]
    cluster: ConnectArgs,
    #[command(flatten)]
    output: OutputArgs,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum DryRun {
    /// Print the manifest and ask no cluster.
    Client,
    /// Let the API server check the object and keep nothing.
    Server,
}

/// Runs the subcommand.
///
/// # Errors
/// When the flags contradict each other, the object is refused, or a right is missing.
pub fn run(args: &SubmitArgs) -> Result<()> {
    let mut job = manifest(args)?;
    let name =
        |made: &Value| format!("trainingjob/{}", made["metadata"]["name"].as_str().unwrap_or_default());
    if args.dry_run == Some(DryRun::Client) {
        return output::print(&match args.output.format {
            Format::Name => format!("{}\n", output::plain(&name(&job))),
            Format::Json => output::document(Format::Json, &job)?,
            _ => output::document(Format::Yaml, &job)?,
        });
    }
    let server = args.dry_run == Some(DryRun::Server);
    let made: Value = block_on(async {
        let cluster = Cluster::connect(&args.cluster).await?;
        let namespace = cluster.namespace_or(args.namespace.as_deref());
        create(&cluster, &namespace, &mut job, server).await
    })?;
    let how = if server { "would be created (checked by the API server)" } else { "created" };
    output::print(&output::object(
        args.output,
        &made,
        |made| format!("{} {how}\n", output::plain(&name(made))),
        name,
    )?)
}

/// Creates the job, with the caller's name in an annotation that `acct` groups by. The annotation proves nothing.
async fn create(cluster: &Cluster, namespace: &str, job: &mut Value, dry_run: bool) -> Result<Value> {
    let review: Option<SelfSubjectReview> =
        cluster.create(None, &SelfSubjectReview::default(), false).await.ok();
    let user = review.and_then(|review| review.status?.user_info?.username);
    if let Some(user) = user.filter(|user| !user.is_empty()) {
        job["metadata"]["annotations"][ANNOTATION_USER] = user.into();
    }
    let made: SlimTrainingJob = cluster.create(Some(namespace), job, dry_run).await?;
    let mut object = serde_json::to_value(made)?;
    object["apiVersion"] = job["apiVersion"].clone();
    object["kind"] = job["kind"].clone();
    Ok(object)
}

/// A folder as it is compared.
fn tidy(folder: &str) -> &str {
    folder.trim_end_matches('/')
}

/// The TrainingJob that the flags describe.
fn manifest(args: &SubmitArgs) -> Result<Value> {
    let Gpus { min, max } = args.gpus;
    if args.nodes > max {
        let (nodes, most) = (args.nodes, "GPUs of --gpus: every node gives at least one");
        return Err(Usage(format!("--nodes {nodes} is more than the {max} {most}")).into());
    }
    let mut container = Map::new();
    container.insert("name".into(), CONTAINER.into());
    container.insert("image".into(), args.image.as_str().into());
    if !args.command.is_empty() {
        container.insert("command".into(), json!(args.command));
    }
    if !args.env.is_empty() {
        let of = |variable: &Variable| json!({"name": variable.name, "value": variable.value});
        container.insert("env".into(), args.env.iter().map(of).collect());
    }
    let mut requests = Map::new();
    for (name, quantity) in [("cpu", &args.cpu), ("memory", &args.memory)] {
        if let Some(quantity) = quantity {
            requests.insert(name.into(), quantity.as_str().into());
        }
    }
    if !requests.is_empty() {
        container.insert("resources".into(), json!({"requests": requests}));
    }
    let mut pod = Map::new();
    if !args.volume.is_empty() {
        // Where the template has a mount, the operator mounts no checkpoint.
        let checkpoint =
            args.checkpoint.as_ref().map(|claim| claim.path.as_deref().unwrap_or(CHECKPOINT_FOLDER));
        let mut folders: Vec<&str> = checkpoint.map(tidy).into_iter().collect();
        let (mut mounts, mut volumes) = (Vec::new(), Vec::new());
        for (number, claim) in args.volume.iter().enumerate() {
            let Some(path) = &claim.path else {
                let message = format!("--volume {}: the folder is missing: CLAIM:PATH", claim.name);
                return Err(Usage(message).into());
            };
            if folders.contains(&tidy(path)) {
                bail!(Usage(format!("--volume {}:{path}: another one has this folder", claim.name)));
            }
            folders.push(tidy(path));
            let name = format!("volume-{number}");
            mounts.push(json!({"name": name, "mountPath": path}));
            volumes.push(json!({"name": name, "persistentVolumeClaim": {"claimName": claim.name}}));
        }
        container.insert("volumeMounts".into(), mounts.into());
        pod.insert("volumes".into(), volumes.into());
    }
    pod.insert("containers".into(), json!([container]));

    let mut gpus = json!({"min": min});
    if max > min {
        gpus["max"] = max.into();
    }
    if args.nodes > 1 {
        gpus["maxNodes"] = args.nodes.into();
    }
    if !args.types.is_empty() {
        gpus["types"] = json!(args.types);
    }
    let mut spec = Map::new();
    spec.insert("gpus".into(), gpus);
    spec.insert("template".into(), json!({"spec": pod}));
    let mut add = |name: &str, value: Option<Value>| {
        if let Some(value) = value {
            spec.insert(name.to_owned(), value);
        }
    };
    match &args.deadline {
        Some(Deadline::At(at)) => add("deadline", Some(at.to_string().into())),
        Some(Deadline::After(after)) => add("deadlineAfter", Some(after.0.as_str().into())),
        None => {}
    }
    add("weight", args.weight.map(Value::from));
    add("epochs", args.epochs.map(Value::from));
    add("profileRef", args.profile.as_deref().map(|name| json!({ "name": name })));
    add("retries", args.retries.map(Value::from));
    add("maxRunTime", args.max_run_time.as_ref().map(|time| time.0.as_str().into()));
    add("suspend", args.suspend.then_some(Value::Bool(true)));
    add(
        "checkpoint",
        args.checkpoint.as_ref().map(|claim| {
            let mut checkpoint = json!({"claimName": claim.name});
            if let Some(path) = &claim.path {
                checkpoint["path"] = path.as_str().into();
            }
            checkpoint
        }),
    );
    let mut metadata = json!({"name": args.name});
    if let Some(namespace) = &args.namespace {
        metadata["namespace"] = namespace.as_str().into();
    }
    Ok(json!({
        "apiVersion": format!("{}/{}", andreas_api::names::GROUP, andreas_api::names::VERSION),
        "kind": "TrainingJob",
        "metadata": metadata,
        "spec": spec,
    }))
}

#[cfg(test)]
mod tests;
