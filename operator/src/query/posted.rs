//! A TrainingJob in a question, checked as the API server checks one that is created: an answer about a manifest that it refuses would
//! be of no use. A test holds these checks against the rules of the definition.

use andreas_api::names::{GPU_RESOURCE, MIG_PREFIX, is_job_name};
use andreas_api::training_job::TrainingJobSpec;
use k8s_openapi::api::core::v1::Container;
use serde_json::Value;

use super::QueryError;

type Checked = Result<(), QueryError>;

/// Longest `startTimeout`, s.
const MAX_START_TIMEOUT: i64 = 4 * 3_600;
/// Fields with a fixed set of values. The types read an unknown one as the default, for other releases.
const WORDS: [&str; 4] = ["profileMatching", "resourcesPer", "rendezvous", "preemption"];
/// Fields of the pod that the operator sets, each with what to use instead.
const REFUSED: [(&str, &str); 14] = [
    ("priorityClassName", "use spec.weight and spec.deadline"),
    ("priority", "use spec.weight and spec.deadline"),
    ("preemptionPolicy", "use spec.preemption"),
    ("schedulerName", "remove it"),
    ("nodeName", "use nodeSelector or affinity, or spec.gpus.types"),
    ("resourceClaims", "use spec.gpus for GPUs, and extended resources for other devices"),
    ("schedulingGates", "use spec.suspend"),
    ("schedulingGroup", "use spec.gpus.maxNodes"),
    ("hostname", "use the environment variable PET_MASTER_ADDR"),
    ("hostnameOverride", "use the environment variable PET_MASTER_ADDR"),
    ("subdomain", "use the environment variable PET_MASTER_ADDR"),
    ("activeDeadlineSeconds", "use spec.maxRunTime"),
    ("terminationGracePeriodSeconds", "use spec.checkpoint.graceSeconds"),
    ("ephemeralContainers", "they are only for running pods"),
];
/// Fields that would restart one container of a gang in place.
const REFUSED_IN_CONTAINER: [&str; 2] = ["restartPolicy", "restartPolicyRules"];

fn refuse(field: impl Into<String>, problem: impl Into<String>) -> Checked {
    Err(QueryError::invalid(field, problem))
}

/// The spec of a posted job.
///
/// # Errors
/// [`QueryError::Invalid`] with the field.
pub fn spec(name: &str, posted: &Value) -> Result<TrainingJobSpec, QueryError> {
    if !is_job_name(name) {
        return Err(QueryError::invalid(
            "metadata.name",
            "is not 1 to 48 lower-case letters, digits and '-', from a letter to a letter or digit",
        ));
    }
    let mut posted = posted.clone();
    drop_nulls(&mut posted);
    let spec: TrainingJobSpec = serde_json::from_value(posted.clone())
        .map_err(|error| QueryError::invalid("spec", error.to_string()))?;
    let read = serde_json::to_value(&spec).map_err(|error| QueryError::invalid("spec", error.to_string()))?;
    if let Some(field) = unknown(&posted, &read, "spec") {
        return Err(QueryError::invalid(field, "is no field of a TrainingJob"));
    }
    for name in WORDS {
        if let Some(word) = posted.get(name).filter(|word| read.get(name) != Some(word)) {
            return Err(QueryError::invalid(
                format!("spec.{name}"),
                format!("{word} is not one of its values"),
            ));
        }
    }
    if spec.adopts.is_some() {
        return Err(QueryError::invalid(
            "spec.adopts",
            "is set by ANDREAS alone: give the job the label andreas.dev/adopt instead",
        ));
    }
    numbers(&spec)?;
    gpus(&spec)?;
    times(&spec)?;
    texts(&spec)?;
    template(&spec, &posted)?;
    Ok(spec)
}

/// Removes fields that are `null`: the API server takes them as absent.
fn drop_nulls(value: &mut Value) {
    match value {
        Value::Object(fields) => {
            fields.retain(|_, value| !value.is_null());
            fields.values_mut().for_each(drop_nulls);
        }
        Value::Array(items) => items.iter_mut().for_each(drop_nulls),
        _ => {}
    }
}

/// The first posted field that the types did not read.
fn unknown(posted: &Value, read: &Value, path: &str) -> Option<String> {
    match (posted, read) {
        (Value::Object(posted), Value::Object(read)) => posted.iter().find_map(|(name, value)| {
            let path = format!("{path}.{name}");
            match read.get(name) {
                Some(read) => unknown(value, read, &path),
                // The types leave empty lists out.
                None if value.as_array().is_some_and(Vec::is_empty) => None,
                None => Some(path),
            }
        }),
        (Value::Array(posted), Value::Array(read)) => {
            let mut pairs = posted.iter().zip(read).enumerate();
            pairs.find_map(|(n, (posted, read))| unknown(posted, read, &format!("{path}[{n}]")))
        }
        _ => None,
    }
}

fn within(field: &str, value: Option<i32>, least: i32, most: i32) -> Checked {
    match value.filter(|value| !(least..=most).contains(value)) {
        Some(value) => refuse(field, format!("{value} is not from {least} to {most}")),
        None => Ok(()),
    }
}

fn numbers(spec: &TrainingJobSpec) -> Checked {
    let grace = spec.checkpoint.as_ref().map(|checkpoint| checkpoint.grace_seconds);
    within("spec.weight", Some(spec.weight), 1, 1_000)?;
    within("spec.epochs", Some(spec.epochs), 1, 10_000_000)?;
    within("spec.retries", Some(spec.retries), 0, 100)?;
    within("spec.historyLimit", Some(spec.history_limit), 0, 20)?;
    within("spec.sharedMemoryMiB", spec.shared_memory_mib, 0, 4_194_304)?;
    within("spec.ttlSecondsAfterFinished", spec.ttl_seconds_after_finished, 0, 31_536_000)?;
    within("spec.checkpoint.graceSeconds", grace, 0, 3_600)
}

fn gpus(spec: &TrainingJobSpec) -> Checked {
    let gpus = &spec.gpus;
    let max = gpus.max.unwrap_or(gpus.min);
    within("spec.gpus.min", Some(gpus.min), 1, 4_096)?;
    within("spec.gpus.max", Some(max), gpus.min, 4_096)?;
    within("spec.gpus.maxNodes", Some(gpus.max_nodes), 1, 512)?;
    within("spec.gpus.memoryGiB", gpus.memory_gib, 1, 4_096)?;
    if gpus.max_nodes > max {
        let problem = format!("{} is more than gpus.max: every node gives at least one GPU", gpus.max_nodes);
        return refuse("spec.gpus.maxNodes", problem);
    }
    for (field, length, most) in
        [("spec.gpus.counts", gpus.counts.len(), 64), ("spec.gpus.types", gpus.types.len(), 32)]
    {
        if length > most {
            return refuse(field, format!("has more than {most} items"));
        }
    }
    gpus.counts.iter().try_for_each(|count| within("spec.gpus.counts", Some(*count), gpus.min, max))
}

fn times(spec: &TrainingJobSpec) -> Checked {
    for (field, duration) in [
        ("spec.deadlineAfter", &spec.deadline_after),
        ("spec.maxRunTime", &spec.max_run_time),
        ("spec.progressTimeout", &spec.progress_timeout),
        ("spec.startTimeout", &Some(spec.start_timeout.clone())),
    ] {
        if duration.as_ref().is_some_and(|text| !text.is_of_schema() || text.seconds_or(0) <= 0) {
            return refuse(field, "is not a duration such as 36h or 1h30m");
        }
    }
    if spec.start_timeout.seconds().is_some_and(|seconds| seconds > MAX_START_TIMEOUT) {
        return refuse("spec.startTimeout", "is longer than 4h");
    }
    if spec.deadline.is_some() && spec.deadline_after.is_some() {
        return refuse("spec.deadline", "and deadlineAfter exclude each other");
    }
    Ok(())
}

fn texts(spec: &TrainingJobSpec) -> Checked {
    if let Some(profile) = &spec.profile {
        let alone = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit();
        let inside = profile.chars().all(|c| alone(c) || c == '-' || c == '.');
        if !inside || !profile.starts_with(alone) || !profile.ends_with(alone) || profile.len() > 253 {
            return refuse("spec.profile", "is not the name of a TrainingProfile");
        }
    }
    if spec.checkpoint.as_ref().is_some_and(|checkpoint| !checkpoint.path.starts_with('/')) {
        return refuse("spec.checkpoint.path", "does not begin with /");
    }
    Ok(())
}

/// What the user may not say in the pod template.
fn template(spec: &TrainingJobSpec, posted: &Value) -> Checked {
    const POD: &str = "spec.template.spec";
    let pod = spec.template.spec.as_ref();
    let containers = pod.map(|pod| pod.containers.as_slice()).unwrap_or_default();
    if !(1..=32).contains(&containers.len()) {
        return refuse(format!("{POD}.containers"), "has no container, or more than 32");
    }
    if spec.container.as_ref().is_some_and(|name| containers.iter().all(|one| one.name != *name)) {
        return refuse("spec.container", "is not the name of a container of the template");
    }
    let metadata = spec.template.metadata.as_ref();
    for (field, map) in [
        ("labels", metadata.and_then(|metadata| metadata.labels.as_ref())),
        ("annotations", metadata.and_then(|metadata| metadata.annotations.as_ref())),
    ] {
        if map.into_iter().flatten().any(|(name, _)| name.starts_with("andreas.dev/")) {
            return refuse(
                format!("spec.template.metadata.{field}"),
                "under andreas.dev/ are set by ANDREAS",
            );
        }
    }
    let posted = &posted["template"]["spec"];
    for (field, instead) in REFUSED {
        if !posted[field].is_null() {
            return refuse(format!("{POD}.{field}"), format!("is set by ANDREAS: {instead}"));
        }
    }
    if pod.and_then(|pod| pod.restart_policy.as_deref()).is_some_and(|policy| policy != "Never") {
        return refuse(format!("{POD}.restartPolicy"), "must be Never or absent: use spec.retries");
    }
    for (n, container) in posted["containers"].as_array().into_iter().flatten().enumerate() {
        if let Some(field) = REFUSED_IN_CONTAINER.into_iter().find(|field| !container[field].is_null()) {
            return refuse(format!("{POD}.containers[{n}].{field}"), "is not possible: use spec.retries");
        }
    }
    let init = pod.and_then(|pod| pod.init_containers.as_deref()).unwrap_or_default();
    asks_for_no_gpus(&format!("{POD}.containers"), containers)?;
    asks_for_no_gpus(&format!("{POD}.initContainers"), init)
}

fn asks_for_no_gpus(list: &str, containers: &[Container]) -> Checked {
    let is_gpu = |name: &str| {
        name.strip_prefix(GPU_RESOURCE).is_some_and(|rest| rest.is_empty() || rest.starts_with('.'))
            || name.starts_with(MIG_PREFIX)
    };
    for (n, container) in containers.iter().enumerate() {
        let Some(resources) = &container.resources else { continue };
        for (field, amounts) in [("limits", &resources.limits), ("requests", &resources.requests)] {
            if let Some(name) = amounts.iter().flatten().map(|(name, _)| name).find(|name| is_gpu(name)) {
                let problem = format!("has {name}: GPU counts are set by ANDREAS, use spec.gpus");
                return refuse(format!("{list}[{n}].resources.{field}"), problem);
            }
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use andreas_api::crd::rules;
    use serde_json::json;

    use super::*;

    fn object(example: &str) -> Value {
        let mut object: Value = serde_saphyr::from_str(rules::minimal("TrainingJob")).expect("minimal");
        let patch: Value = serde_saphyr::from_str(example).expect("an example");
        super::super::explain::merge(&mut object, &patch);
        object
    }

    fn checked(object: &Value) -> Result<TrainingJobSpec, QueryError> {
        spec(object["metadata"]["name"].as_str().unwrap_or_default(), &object["spec"])
    }

    #[test]
    fn what_the_definition_refuses_is_refused_and_what_it_accepts_is_accepted() {
        let mut seen = 0;
        for rule in rules::all().filter(|rule| rule.kind == "TrainingJob") {
            if rule.rejected.update.is_none() {
                let answer = checked(&object(rule.rejected.create));
                assert!(matches!(answer, Err(QueryError::Invalid { .. })), "{}", rule.message);
                seen += 1;
            }
            if rule.accepted.update.is_none() {
                let answer = checked(&object(rule.accepted.create));
                assert!(answer.is_ok(), "{}: {answer:?}", rule.accepted.create);
            }
        }
        assert!(seen > 30, "{seen} rules");
    }

    /// The rules above are those beside the schema's patterns.
    #[test]
    fn durations_are_those_of_the_schema() {
        for field in ["deadlineAfter", "maxRunTime", "progressTimeout", "startTimeout"] {
            assert!(checked(&object(&format!("spec: {{{field}: 1h30m}}"))).is_ok(), "{field}");
            for text in ["0s", "1000000s", "1h1m1s1s1s"] {
                let answer = checked(&object(&format!("spec: {{{field}: {text}}}")));
                let Err(QueryError::Invalid { field: named, .. }) = answer else { panic!("{field}: {text}") };
                assert_eq!(named, format!("spec.{field}"), "{text}");
            }
        }
    }

    #[test]
    fn known_fields_in_any_spelling_of_the_api_are_accepted() {
        let all = object(
            "spec: {deadline: '2999-01-01T01:00:00+01:00', epochs: null, retries: 0, rendezvous: Env, preemption: Never, \
             gpus: {counts: [], types: [], max: null}, checkpoint: {claimName: c}, template: {metadata: {creationTimestamp: null, \
             labels: {}}, spec: {nodeSelector: {}, tolerations: [], volumes: [{name: v, emptyDir: {}}], containers: [{name: t, \
             image: i, resources: {limits: {cpu: 4, memory: 1Gi}}, env: [{name: A, value: ''}], ports: [{containerPort: 80}], \
             livenessProbe: {httpGet: {port: http}}}]}}}",
        );
        assert!(checked(&all).is_ok(), "{:?}", checked(&all));
    }

    #[test]
    fn an_unknown_field_is_named_with_its_path() {
        let mut one = object("{}");
        one["spec"]["template"]["spec"]["containers"][0]["comand"] = json!(["a"]);
        let Err(QueryError::Invalid { field, .. }) = checked(&one) else { panic!("accepted") };
        assert_eq!(field, "spec.template.spec.containers[0].comand");
    }
}
