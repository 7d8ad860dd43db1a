//! What a conversion keeps, and what it says of the rest.

use serde_json::{Value, json};

use crate::convert::{Converted, Level, convert};

fn of(file: &Value) -> Converted {
    convert(&file.to_string(), Some("i"), &[]).unwrap_or_else(|error| panic!("{error}")).remove(0)
}

/// Fields of the lost notes.
fn lost(one: &Converted) -> Vec<&str> {
    one.notes.iter().filter(|note| note.level == Level::Lost).map(|note| note.field.as_str()).collect()
}

fn pods(gpus: i64) -> Value {
    json!({"spec": {"containers": [{"name": "a", "resources": {"limits": {"nvidia.com/gpu": gpus}}}]}})
}

fn object(version: &str, kind: &str, spec: Value) -> Value {
    json!({"apiVersion": version, "kind": kind, "metadata": {"name": "a"}, "spec": spec})
}

fn job(spec: Value) -> Value {
    let mut object = object("batch/v1", "Job", spec);
    object["spec"]["template"] = pods(1);
    object
}

fn job_set(jobs: Value) -> Value {
    object("jobset.x-k8s.io/v1alpha2", "JobSet", json!({"replicatedJobs": jobs}))
}

/// A RayJob whose container has also this.
fn ray_job(more: &Value) -> Value {
    let mut template = pods(1);
    template["spec"]["containers"][0].as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    let cluster = json!({"headGroupSpec": {"template": template}});
    object("ray.io/v1", "RayJob", json!({"entrypoint": "python a.py", "rayClusterSpec": cluster}))
}

#[test]
fn a_job_that_waits_for_adoption_is_not_suspended() {
    let train_job =
        object("trainer.kubeflow.org/v1alpha1", "TrainJob", json!({"runtimeRef": {"name": "torch"}}));
    let roles = json!({"Worker": {"template": pods(1)}});
    let pytorch_job = object("kubeflow.org/v1", "PyTorchJob", json!({"pytorchReplicaSpecs": roles}));
    let set = job_set(json!([{"name": "a", "template": {"spec": {"template": pods(1)}}}]));
    for mut object in [job(json!({})), set, train_job, pytorch_job, ray_job(&json!({}))] {
        if object["kind"] == "PyTorchJob" {
            object["spec"]["runPolicy"] = json!({"suspend": true});
        } else {
            object["spec"]["suspend"] = json!(true);
        }
        let suspended = |value: &str| {
            let mut object = object.clone();
            object["metadata"]["labels"] = json!({"andreas.dev/adopt": value});
            let made = of(&object);
            assert!(made.job["metadata"]["labels"].is_null(), "{}", made.job);
            let said = made.notes.iter().any(|note| note.field.ends_with("suspend"));
            (made.job["spec"]["suspend"].clone(), said)
        };
        assert_eq!(suspended("true"), (Value::Null, true), "{object}");
        assert_eq!(suspended("false"), (json!(true), false), "{object}");
    }
}

#[test]
fn names_that_the_api_server_makes_are_names_of_training_jobs() {
    let long = "a-sweep-over-learning-rates-of-the-large-model";
    for (prefix, made, noted) in [
        ("sweep-", "sweep-", false),
        ("sweep", "sweep", false),
        ("llama-2.7b-", "llama-2-7b-", true),
        ("70b-sweep-", "job-70b-sweep-", true),
        (long, "a-sweep-over-learning-rates-of-th-", true),
        (&long[..43], &long[..43], false),
    ] {
        let mut object = job(json!({}));
        object["metadata"] = json!({"generateName": prefix});
        let one = of(&object);
        let name = one.job["metadata"]["generateName"].as_str().unwrap();
        // A name that is cut ends in a number.
        assert!(name == made || noted && name.starts_with(made), "{prefix}: {name}");
        assert!(andreas_api::names::is_job_name(&format!("{name}x2b4z")), "{prefix}: {name}");
        assert_eq!(one.notes.iter().any(|note| note.field == "metadata.generateName"), noted, "{prefix}");
    }
}

#[test]
fn a_job_has_no_more_workers_than_runs() {
    for (parallelism, completions, gpus, said) in [(4, 2, 2, false), (2, 2, 2, false), (2, 4, 2, true)] {
        let spec =
            json!({"parallelism": parallelism, "completions": completions, "completionMode": "Indexed"});
        let one = of(&job(spec));
        assert_eq!(one.job["spec"]["gpus"]["min"], gpus);
        assert_eq!(lost(&one).contains(&"spec.completions"), said, "{:?}", one.notes);
    }
    let alike = |completions: i64| {
        let spec =
            json!({"parallelism": 4, "completions": completions, "backoffLimit": 0, "template": pods(1)});
        json!({"name": "b", "template": {"spec": spec}})
    };
    let one = of(&job_set(json!([alike(1), alike(2)])));
    assert_eq!(one.job["spec"]["gpus"]["min"], 3);
}

/// A node with several type labels has the type of the first one alone.
#[test]
fn a_node_selector_stays_but_for_the_gpu_product() {
    let (product, instance) = ("nvidia.com/gpu.product", "node.kubernetes.io/instance-type");
    for (selector, types, kept) in [
        (json!({instance: "p4d.24xlarge"}), Value::Null, json!({instance: "p4d.24xlarge"})),
        (
            json!({product: "A100", instance: "p4d.24xlarge"}),
            json!(["A100"]),
            json!({instance: "p4d.24xlarge"}),
        ),
        (
            json!({"cloud.google.com/gke-accelerator": "a"}),
            Value::Null,
            json!({"cloud.google.com/gke-accelerator": "a"}),
        ),
        (json!({product: "A100"}), json!(["A100"]), Value::Null),
    ] {
        let mut object = job(json!({}));
        object["spec"]["template"]["spec"]["nodeSelector"] = selector.clone();
        let one = of(&object);
        let spec = &one.job["spec"];
        assert_eq!(
            (&spec["gpus"]["types"], &spec["template"]["spec"]["nodeSelector"]),
            (&types, &kept),
            "{selector}"
        );
        let noted = one.notes.iter().any(|note| note.field.contains("nodeSelector"));
        assert_eq!(noted, !types.is_null(), "{:?}", one.notes);
    }
}

#[test]
fn limits_in_which_jobs_of_a_set_differ_are_lost() {
    let job = |limits: Value| {
        let mut spec = json!({"completionMode": "Indexed", "template": pods(1)});
        spec.as_object_mut().unwrap().extend(limits.as_object().unwrap().clone());
        json!({"name": "b", "template": {"spec": spec}})
    };
    let same = json!({"backoffLimit": 0, "activeDeadlineSeconds": 60});
    assert!(lost(&of(&job_set(json!([job(same.clone()), job(same.clone())])))).is_empty());
    let one = of(&job_set(json!([job(same), job(json!({"backoffLimit": 3, "activeDeadlineSeconds": 60}))])));
    assert_eq!(lost(&one), ["spec.replicatedJobs[1].template.spec.backoffLimit"]);
}

#[test]
fn a_runtime_is_read_as_a_whole() {
    let node = json!({"backoffLimit": 7, "activeDeadlineSeconds": 3600, "template": pods(1)});
    let node =
        json!({"name": "node", "replicas": 2, "dependsOn": [{"name": "data"}], "template": {"spec": node}});
    let mut runtime = object(
        "trainer.kubeflow.org/v1alpha1",
        "ClusterTrainingRuntime",
        json!({
            "mlPolicy": {"numNodes": 2, "torch": {"numProcPerNode": "1", "elasticPolicy": {"maxNodes": 4}}, "jax": {}},
            "podGroupPolicy": {"coscheduling": {}},
            "template": {"spec": {"ttlSecondsAfterFinished": 60, "failurePolicy": {"maxRestarts": 5}, "replicatedJobs": [node]}},
        }),
    );
    let made = |runtime: &Value, more: Value| {
        let mut spec = json!({"runtimeRef": {"name": "a"}});
        spec.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        let job = object("trainer.kubeflow.org/v1alpha1", "TrainJob", spec);
        of(&json!({"apiVersion": "v1", "kind": "List", "items": [runtime, job]}))
    };
    let one = made(&runtime, json!({}));
    let spec = &one.job["spec"];
    let limits = (&spec["retries"], &spec["maxRunTime"], &spec["ttlSecondsAfterFinished"]);
    assert_eq!(limits, (&json!(5), &json!("1h"), &json!(60)));
    assert_eq!(spec["gpus"], json!({"min": 2, "maxNodes": 2}));
    let fields = [
        "runtime.spec.mlPolicy.torch.elasticPolicy",
        "runtime.spec.mlPolicy.jax",
        "runtime.spec.template.spec.replicatedJobs.dependsOn",
        "runtime.spec.template.spec.replicatedJobs.replicas",
    ];
    assert_eq!(lost(&one), fields);
    // The job's own limit of time, and the retries of its pods where the set has no limit.
    runtime["spec"]["template"]["spec"]["failurePolicy"] = Value::Null;
    let one = made(&runtime, json!({"activeDeadlineSeconds": 60}));
    assert_eq!((&one.job["spec"]["retries"], &one.job["spec"]["maxRunTime"]), (&json!(7), &json!("1m")));
}

#[test]
fn a_command_that_rays_start_replaces_is_lost() {
    assert!(lost(&of(&ray_job(&json!({})))).is_empty());
    for more in [json!({"args": ["ulimit -n 65536; $KUBERAY_GEN_RAY_START_CMD"]}), json!({"command": ["sh"]})]
    {
        let one = of(&ray_job(&more));
        assert_eq!(lost(&one), ["spec.rayClusterSpec.headGroupSpec.template.spec.containers"], "{more}");
        assert!(one.job["spec"]["template"]["spec"]["containers"][0]["args"].is_null());
    }
}
