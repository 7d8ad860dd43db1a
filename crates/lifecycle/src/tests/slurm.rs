use andreas_api::training_job::Allocation;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use serde_json::{Value, json};

use super::world::*;
use crate::*;

/// The pod of a worker on these nodes with four GPUs, of a job with this spec.
fn worker(spec: Value, nodes: &[&str], index: usize) -> Value {
    let world = World::new(spec);
    let allocation = Allocation {
        attempt: 3,
        generation: 17,
        gpu_type: "A100".into(),
        gpus: 4 * i32::try_from(nodes.len()).unwrap(),
        gpus_per_worker: 4,
        nodes: nodes.iter().map(|n| (*n).into()).collect(),
        power_limit_watts: None,
        limit_changed: false,
        guard_watts: None,
        guard_reached: false,
        since: Time(at(0)),
        bound_time: None,
        running_time: None,
        watts: 0,
        host_watts: 0,
    };
    serde_json::to_value(pods::member(&world.job, &allocation, index, &world.nodes, &world.settings)).unwrap()
}

fn script(container: Value) -> Value {
    let mut whole = json!({"name": "train", "command": ["bash", "-c", "srun hostname"], "args": ["a"]});
    whole.as_object_mut().unwrap().extend(container.as_object().unwrap().clone());
    json!({"rendezvous": "Slurm", "template": {"spec": {"containers": [whole, {"name": "log", "command": ["log"]}]}}})
}

fn variable(pod: &Value, name: &str) -> Value {
    let env = pod["spec"]["containers"][0]["env"].as_array().unwrap();
    let all: Vec<&Value> = env.iter().filter(|variable| variable["name"] == name).collect();
    assert!(all.len() <= 1, "{name} is there twice");
    all.first().map_or(Value::Null, |variable| variable["value"].clone())
}

#[test]
fn a_batch_script_has_slurms_variables() {
    let requests = json!({"requests": {"cpu": "9500m"}});
    let pod = worker(script(json!({"resources": requests})), &["n2", "n1"], 1);
    for (name, value) in [
        ("SLURM_JOB_NAME", "bert"),
        ("SLURM_NNODES", "2"),
        ("SLURM_JOB_NUM_NODES", "2"),
        ("SLURM_NODEID", "1"),
        ("SLURM_NTASKS", "8"),
        ("SLURM_NTASKS_PER_NODE", "4"),
        ("SLURM_GPUS_ON_NODE", "4"),
        ("SLURM_CPUS_PER_TASK", "2"),
        ("SLURM_RESTART_COUNT", "2"),
        ("SLURM_JOB_NODELIST", "bert-3-0.bert-gang-12345.team.svc,bert-3-1.bert-gang-12345.team.svc"),
        ("MASTER_ADDR", "bert-3-0.bert-gang-12345.team.svc"),
        ("MASTER_PORT", "29500"),
        ("PET_NNODES", "2"),
    ] {
        assert_eq!(variable(&pod, name), value, "{name}");
    }
    assert_eq!(
        (variable(&pod, "RANK"), variable(&pod, "SLURM_JOB_ID").as_str().map(str::len)),
        (Value::Null, Some(8))
    );
    let alone = worker(script(json!({})), &["n1"], 0);
    assert_eq!(
        (variable(&alone, "SLURM_JOB_NODELIST"), variable(&alone, "SLURM_CPUS_PER_TASK")),
        (json!("bert-3-0"), json!("1"))
    );
}

#[test]
fn the_templates_environment_says_how_many_tasks_a_node_has() {
    let env =
        json!([{"name": "SLURM_NTASKS_PER_NODE", "value": "1"}, {"name": "SLURM_NODEID", "value": "9"}]);
    let pod = worker(script(json!({"env": env})), &["n1", "n2"], 0);
    assert_eq!((variable(&pod, "SLURM_NTASKS"), variable(&pod, "SLURM_NODEID")), (json!("2"), json!("0")));
}

#[test]
fn programs_come_by_the_pods_annotations_and_start_the_command() {
    let pod = worker(script(json!({})), &["n1"], 0);
    let (spec, train) = (&pod["spec"], &pod["spec"]["containers"][0]);
    assert_eq!(
        train["command"],
        json!(["/bin/sh", "/run/andreas/slurm/andreas-batch", "bash", "-c", "srun hostname"])
    );
    assert_eq!((&train["args"], &spec["containers"][1]["command"]), (&json!(["a"]), &json!(["log"])));
    assert!(spec["containers"][1]["volumeMounts"].is_null() && spec["initContainers"].is_null());
    let mount = json!({"name": "andreas-slurm", "mountPath": "/run/andreas/slurm", "readOnly": true});
    assert!(train["volumeMounts"].as_array().unwrap().contains(&mount), "{train}");
    let volume =
        spec["volumes"].as_array().unwrap().iter().find(|volume| volume["name"] == "andreas-slurm").unwrap();
    assert_eq!(volume["downwardAPI"]["defaultMode"], 0o555);
    for file in volume["downwardAPI"]["items"].as_array().unwrap() {
        let key = file["fieldRef"]["fieldPath"].as_str().unwrap();
        let key = key.strip_prefix("metadata.annotations['").and_then(|key| key.strip_suffix("']")).unwrap();
        assert!(pod["metadata"]["annotations"][key].as_str().is_some_and(|text| text.len() > 50), "{file}");
    }
    // Only where a job asks for it.
    let plain = worker(json!({}), &["n1"], 0);
    assert!(!plain.to_string().contains("slurm"), "{plain}");
}

#[test]
fn a_container_without_a_command_is_left_as_it_is() {
    let template = json!({"spec": {"containers": [{"name": "train", "args": ["a"]}]}});
    let pod = worker(json!({"rendezvous": "Slurm", "template": template}), &["n1"], 0);
    assert!(pod["spec"]["containers"][0]["command"].is_null());
}
