//! A pod template as a TrainingJob may have it: without what the operator sets itself.

use andreas_api::names::{GPU_RESOURCE, LABEL_GPU_PRODUCT, MIG_PREFIX, is_extended_resource};
use andreas_api::quantity;
use serde_json::{Map, Value};

use super::error::ConvertError;
use super::fields::Fields;
use super::kueue;
use super::launch;
use super::notes::Notes;

/// Fields of a pod that the operator sets, each with what to use instead.
const REFUSED: [(&str, &str); 11] = [
    ("priorityClassName", "weight and deadline order jobs"),
    ("priority", "weight and deadline order jobs"),
    ("preemptionPolicy", "use spec.preemption"),
    ("nodeName", "nodes are chosen by the plan: use nodeSelector, or gpus.types"),
    ("resourceClaims", "devices of claims are not planned: use spec.gpus"),
    ("schedulingGates", "use spec.suspend"),
    ("hostname", "workers find each other by PET_MASTER_ADDR"),
    ("hostnameOverride", "workers find each other by PET_MASTER_ADDR"),
    ("subdomain", "workers find each other by PET_MASTER_ADDR"),
    ("ephemeralContainers", "they are only for running pods"),
    ("schedulingGroup", "gangs start as a whole anyway"),
];

/// What the names of devices that are not planned begin with.
const DEVICES: &str = "amd.com/ aws.amazon.com/neuron cloud-tpus.google.com/ google.com/tpu gpu.intel.com/ \
    habana.ai/ huawei.com/Ascend intel.com/gpu";

/// Labels that the API server gives to the pods of a Job.
const JOB_LABELS: [&str; 4] =
    ["controller-uid", "job-name", "batch.kubernetes.io/controller-uid", "batch.kubernetes.io/job-name"];

/// A template without what the operator sets, and what it asked for.
#[derive(Debug, Default, PartialEq)]
pub struct Template {
    /// The pod template.
    pub value: Value,
    /// GPUs of one pod.
    pub gpus: i64,
    /// GPU type by the node selector.
    pub gpu_type: Option<String>,
    /// Limit of the pod's life, s.
    pub max_run_time: Option<i64>,
    /// Container that trains, if it is not the first.
    pub container: Option<String>,
    /// Command and arguments of the container that trains.
    pub words: Vec<String>,
    /// Where they stand in the file.
    pub field: String,
    /// It asks for devices in another way than by `nvidia.com/gpu`.
    pub other_devices: bool,
    /// Its environment said where the others are, in PyTorch's plain names.
    pub plain_names: bool,
}

/// Reads a template at `path`; `trains` names the container that trains, if the kind knows.
///
/// # Errors
/// When it has no containers, or a field is of another type.
pub fn convert(
    path: &str,
    template: Value,
    trains: Option<&str>,
    notes: &mut Notes,
) -> Result<Template, ConvertError> {
    let mut fields = Fields::new(path, template)?;
    let mut metadata = fields.object("metadata")?;
    metadata.ignore(&["creationTimestamp", "name"]);
    let mut kept_metadata = Map::new();
    for map in ["labels", "annotations"] {
        let mut entries = metadata.object(map)?;
        kueue::take(&mut entries, notes);
        entries.ignore(&JOB_LABELS);
        let Value::Object(mut entries) = entries.into_value() else { continue };
        entries.retain(|key, _| {
            let own = key.starts_with("andreas.dev/");
            if own {
                notes.lost(
                    format!("{path}.metadata.{map}.{key}"),
                    "keys under andreas.dev/ are set by the operator",
                );
            }
            !own
        });
        if !entries.is_empty() {
            kept_metadata.insert(map.to_owned(), Value::Object(entries));
        }
    }
    metadata.rest(notes);
    let mut pod = fields.object("spec")?;
    fields.rest(notes);
    let mut made = Template::default();
    let mut spec = Map::new();
    let containers = pod.list("containers")?;
    if containers.is_empty() {
        return Err(ConvertError::field(pod.path("containers"), "is missing or empty"));
    }
    restrictions(&mut pod, &mut made, notes)?;
    let selected = node_selector(&mut pod, &mut made, notes)?;
    if !selected.is_empty() {
        spec.insert("nodeSelector".into(), Value::Object(selected));
    }
    let init = pod.list("initContainers")?;
    if !init.is_empty() {
        let mut kept = Vec::new();
        for (number, container) in init.into_iter().enumerate() {
            let path = format!("{}[{number}]", pod.path("initContainers"));
            kept.push(self::container(path, container, true, notes)?.value);
        }
        spec.insert("initContainers".into(), kept.into());
    }
    let mut converted = Vec::new();
    for (number, container) in containers.into_iter().enumerate() {
        let path = format!("{}[{number}]", pod.path("containers"));
        converted.push(self::container(path, container, false, notes)?);
    }
    choose(&converted, trains, &mut made, notes);
    made.field = format!("{path}.spec.containers");
    spec.insert("containers".into(), converted.into_iter().map(|one| one.value).collect());
    if let Value::Object(rest) = pod.into_value() {
        spec.extend(rest.into_iter().filter(|(_, value)| !value.is_null()));
    }
    let mut value = Map::new();
    if !kept_metadata.is_empty() {
        value.insert("metadata".into(), Value::Object(kept_metadata));
    }
    value.insert("spec".into(), Value::Object(spec));
    made.value = Value::Object(value);
    Ok(made)
}

/// Whether a container of a template asks for GPUs.
pub fn asks_for_gpus(template: &Value) -> bool {
    let containers = template.pointer("/spec/containers").and_then(Value::as_array);
    containers.into_iter().flatten().any(|container| {
        ["requests", "limits"].iter().any(|kind| container["resources"][kind].get(GPU_RESOURCE).is_some())
    })
}

/// Takes the fields of a pod that a TrainingJob may not give.
fn restrictions(pod: &mut Fields, made: &mut Template, notes: &mut Notes) -> Result<(), ConvertError> {
    made.other_devices = pod.names().any(|name| name == "resourceClaims");
    for (field, instead) in REFUSED {
        pod.lost(field, notes, instead);
    }
    let scheduler = pod.path("schedulerName");
    if let Some(name) = pod.text("schedulerName")?.filter(|name| name != "default-scheduler") {
        notes.changed(scheduler, format!("the scheduler is ANDREAS and not {name}"));
    }
    let restart = pod.path("restartPolicy");
    if let Some(policy) = pod.text("restartPolicy")?.filter(|policy| policy != "Never") {
        notes.changed(restart, format!("{policy} becomes spec.retries: a gang is started again as a whole"));
    }
    let limit = pod.path("activeDeadlineSeconds");
    if let Some(seconds) = pod.number("activeDeadlineSeconds")?.filter(|seconds| *seconds > 0) {
        notes.changed(limit, "becomes spec.maxRunTime");
        made.max_run_time = Some(seconds);
    }
    let grace = pod.path("terminationGracePeriodSeconds");
    if let Some(seconds) = pod.number("terminationGracePeriodSeconds")?.filter(|seconds| *seconds != 30) {
        notes.lost(grace, format!("use spec.checkpoint.graceSeconds: {seconds} if the program saves its state when it is stopped"));
    }
    Ok(())
}

/// The node selector without the GPU type, which goes to the template's type. Only the first of the default type labels is taken:
/// a node with it has no other type, whatever its other labels say. Plans read the rest as it is.
fn node_selector(
    pod: &mut Fields,
    made: &mut Template,
    notes: &mut Notes,
) -> Result<Map<String, Value>, ConvertError> {
    let mut selector = pod.object("nodeSelector")?;
    made.gpu_type = selector.text(LABEL_GPU_PRODUCT)?;
    if made.gpu_type.is_some() {
        notes.changed(selector.path(LABEL_GPU_PRODUCT), "becomes spec.gpus.types");
    }
    Ok(match selector.into_value() {
        Value::Object(rest) => rest,
        _ => Map::new(),
    })
}

/// A container without GPUs and without what the operator sets.
struct Container {
    name: String,
    gpus: i64,
    other_devices: bool,
    plain_names: bool,
    words: Vec<String>,
    value: Value,
}

fn container(
    path: String,
    container: Value,
    init: bool,
    notes: &mut Notes,
) -> Result<Container, ConvertError> {
    let mut fields = Fields::new(path, container)?;
    let name = fields.text("name")?.unwrap_or_else(|| "main".to_owned());
    let sidecar =
        init && matches!(fields.take("restartPolicy"), Some(Value::String(policy)) if policy == "Always");
    if !init {
        fields.lost("restartPolicy", notes, "a gang is started again as a whole: use spec.retries");
    }
    fields.lost("restartPolicyRules", notes, "a gang is started again as a whole: use spec.retries");
    let mut kept = Map::new();
    kept.insert("name".into(), name.as_str().into());
    if sidecar {
        kept.insert("restartPolicy".into(), "Always".into());
    }
    let mut resources = fields.object("resources")?;
    resources.lost("claims", notes, "devices of claims are not planned: use spec.gpus");
    let (mut gpus, mut other_devices, mut kept_resources) = (0, false, Map::new());
    for kind in ["requests", "limits"] {
        let mut amounts = resources.object(kind)?;
        let path = amounts.path(GPU_RESOURCE);
        let asked = match amounts.take(GPU_RESOURCE) {
            Some(value) => quantity::count(&value)
                .ok_or_else(|| ConvertError::field(path.as_str(), "is not a whole number of GPUs"))?,
            None => 0,
        };
        if asked > 0 && init {
            notes.lost(path, "GPUs are for the container that trains");
        } else {
            gpus = gpus.max(asked);
        }
        let Value::Object(mut amounts) = amounts.into_value() else { continue };
        amounts.retain(|key, amount| {
            let device = DEVICES.split(' ').any(|vendor| key.starts_with(vendor));
            if device {
                other_devices = true;
                let text =
                    format!("{} of them are asked for, and only {GPU_RESOURCE} is planned", shown(amount));
                notes.lost(key.as_str(), text);
                return false;
            }
            let shared = key.starts_with(MIG_PREFIX) || key.starts_with("nvidia.com/gpu.");
            if shared {
                notes.lost(key.as_str(), "parts of GPUs are not planned");
            }
            !shared
        });
        if !amounts.is_empty() {
            kept_resources.insert(kind.to_owned(), Value::Object(amounts));
        }
    }
    resources.rest(notes);
    if !kept_resources.is_empty() {
        kept.insert("resources".into(), Value::Object(kept_resources));
    }
    let (env, plain_names) = environment(&mut fields, notes)?;
    if !env.is_empty() {
        kept.insert("env".into(), env.into());
    }
    let mut words = Vec::new();
    for part in ["command", "args"] {
        let path = fields.path(part);
        let given = fields.list(part)?;
        if given.iter().any(|word| !word.is_string()) {
            return Err(ConvertError::field(path, "is not a list of texts"));
        }
        let value = Value::Array(given);
        let tidy = launch::without_launcher_flags(&launch::words(Some(&value)), &path, notes);
        if !tidy.is_empty() {
            kept.insert(part.to_owned(), tidy.iter().map(String::as_str).collect());
        }
        words.extend(tidy);
    }
    if let Value::Object(rest) = fields.into_value() {
        kept.extend(rest.into_iter().filter(|(_, value)| !value.is_null()));
    }
    Ok(Container { name, gpus, other_devices, plain_names, words, value: Value::Object(kept) })
}

/// The environment without what the operator sets, and whether that had PyTorch's plain names.
fn environment(fields: &mut Fields, notes: &mut Notes) -> Result<(Vec<Value>, bool), ConvertError> {
    let path = fields.path("env");
    let mut env = fields.list("env")?;
    let plain_names = env
        .iter()
        .any(|variable| ["MASTER_ADDR", "RANK", "WORLD_SIZE"].iter().any(|name| variable["name"] == *name));
    env.retain(|variable| {
        let name = variable["name"].as_str().unwrap_or_default();
        let own = launch::OWN_VARIABLES.contains(&name);
        if name == "NODE_RANK" {
            notes.lost(format!("{path}.{name}"), "is not set: use PET_NODE_RANK");
        } else if own {
            notes.changed(format!("{path}.{name}"), "is set by the operator for each attempt");
        }
        !own
    });
    Ok((env, plain_names))
}

/// Which container trains: the one that the kind names, else the one with GPUs, else the first.
fn choose(containers: &[Container], trains: Option<&str>, made: &mut Template, notes: &mut Notes) {
    let named = trains.and_then(|name| containers.iter().position(|one| one.name == name));
    let with_gpus = || containers.iter().position(|one| one.gpus > 0);
    let at = named.or_else(with_gpus).unwrap_or(0);
    let Some(chosen) = containers.get(at) else { return };
    made.gpus = chosen.gpus;
    made.other_devices |= chosen.other_devices;
    made.plain_names = chosen.plain_names;
    made.words.clone_from(&chosen.words);
    made.container = (at > 0).then(|| chosen.name.clone());
    for other in containers.iter().filter(|one| one.gpus > 0 && one.name != chosen.name) {
        notes.lost(format!("containers.{}", other.name), format!("the GPUs are for {} alone", chosen.name));
    }
}

/// A value as it is written.
fn shown(value: &Value) -> String {
    value.as_str().map_or_else(|| value.to_string(), str::to_owned)
}

/// Divides the requests and limits of a template by the GPUs of a pod. Whether there were any to divide.
pub fn per_gpu(template: &mut Value, gpus: i64) -> bool {
    let Ok(gpus @ 2..) = u32::try_from(gpus) else { return false };
    let mut divided = false;
    let containers = template.pointer_mut("/spec/containers").and_then(Value::as_array_mut);
    for container in containers.into_iter().flatten() {
        for kind in ["requests", "limits"] {
            let amounts = container.pointer_mut(&format!("/resources/{kind}")).and_then(Value::as_object_mut);
            for (name, amount) in amounts.into_iter().flatten() {
                let text = shown(amount);
                // A worker gets whole devices.
                let part = if is_extended_resource(name) { quantity::share } else { quantity::part };
                if let Some(part) = part(&text, gpus) {
                    *amount = part.into();
                    divided = true;
                }
            }
        }
    }
    divided
}
