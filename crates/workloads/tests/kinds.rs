//! What manifests say in ways that a field alone does not show: launchers behind others, devices, roles, names of pods.

#![allow(clippy::unwrap_used)]

use andreas_workloads::convert::{Converted, Level, convert};
use serde_json::{Value, json};

fn of(object: &Value) -> Converted {
    convert(&object.to_string(), None, &[]).unwrap_or_else(|error| panic!("{error}")).remove(0)
}

fn lost(one: &Converted) -> Vec<String> {
    let lost = one.notes.iter().filter(|note| note.level == Level::Lost);
    lost.map(|note| format!("{}: {}", note.field, note.text)).collect()
}

/// A Job of so many pods whose container has these fields.
fn job(pods: i64, container: &Value) -> Value {
    let mut whole = json!({"name": "train", "image": "i"});
    whole.as_object_mut().unwrap().extend(container.as_object().unwrap().clone());
    json!({"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": "plain-ddp"}, "spec": {
        "completionMode": "Indexed", "completions": pods, "parallelism": pods, "backoffLimit": 0,
        "template": {"spec": {"restartPolicy": "Never", "containers": [whole]}},
    }})
}

fn gpus(number: i64) -> Value {
    json!({"limits": {"nvidia.com/gpu": number}})
}

#[test]
fn a_job_that_sets_pytorchs_plain_names_gets_them_from_the_operator() {
    let env = json!([
        {"name": "MASTER_ADDR", "value": "plain-ddp-0.plain-ddp"}, {"name": "MASTER_PORT", "value": "29500"},
        {"name": "WORLD_SIZE", "value": "4"}, {"name": "SEED", "value": "1"},
    ]);
    let one = of(&job(4, &json!({"command": ["./train"], "env": env, "resources": gpus(1)})));
    assert_eq!(one.job["spec"]["rendezvous"], "Env");
    let container = &one.job["spec"]["template"]["spec"]["containers"][0];
    assert_eq!(container["env"], json!([{"name": "SEED", "value": "1"}]));
    let torchrun = of(&job(4, &json!({"command": ["torchrun", "a.py"], "env": env, "resources": gpus(1)})));
    assert!(torchrun.job["spec"]["rendezvous"].is_null());
    let rank = json!([{"name": "NODE_RANK", "value": "1"}]);
    let rank = of(&job(4, &json!({"command": ["torchrun", "a.py"], "env": rank, "resources": gpus(1)})));
    assert!(lost(&rank)[0].ends_with("NODE_RANK: is not set: use PET_NODE_RANK"), "{:?}", rank.notes);
}

#[test]
fn a_text_for_a_shell_is_read_behind_comments_keywords_and_other_programs() {
    let text = "# four processes\naccelerate launch train.py";
    for command in [
        json!(["bash", "-c", text]),
        json!(["bash", "-c", "--", text]),
        json!(["tini", "--", "bash", "-c", text]),
        json!(["/usr/bin/env", "bash", "-ec", text]),
        json!(["stdbuf", "-oL", "bash", "-c", text]),
        json!(["bash", "-c", "if true; then accelerate launch train.py # it's\nfi"]),
        json!(["bash", "-c", "! { accelerate launch train.py; }"]),
        json!(["bash", "-c", "for a in 1; do accelerate launch train.py; done"]),
    ] {
        let lost = lost(&of(&job(1, &json!({"command": command, "resources": gpus(4)}))));
        assert!(lost.len() == 1 && lost[0].contains("accelerate does not read PET_*"), "{command} {lost:?}");
    }
}

#[test]
fn programs_that_start_others_are_looked_behind() {
    for line in [
        "uv run train.py",
        "poetry run python train.py",
        "conda run -n x python train.py",
        "micromamba run python train.py",
        "numactl -l python train.py",
        "nsys profile -o x python train.py",
        "timeout 3600 python train.py",
        "stdbuf -oL python train.py",
        "xvfb-run python train.py",
        "tini -- python train.py",
        "nice -n 5 python train.py",
        "/usr/bin/time -v python train.py",
        "srun python train.py",
        "env A=1 nohup python train.py",
        "composer --nproc 8 train.py",
        "colossalai run train.py",
        "llamafactory-cli train x",
        "fabric run train.py",
        "lightning run train.py",
        "torchx run x",
        "horovodrun -np 8 python train.py",
        "ibrun ./train",
        "ray start --head",
        "srun accelerate launch train.py",
        "shifter python train.py",
        "podman-hpc run x",
        "enroot start x",
    ] {
        let command: Vec<&str> = line.split(' ').collect();
        let lost = lost(&of(&job(1, &json!({"command": command, "resources": gpus(8)}))));
        assert_eq!(lost.len(), 1, "{line} {lost:?}");
    }
    for line in ["uv run torchrun train.py", "numactl -l torchrun train.py", "./train"] {
        let command: Vec<&str> = line.split(' ').collect();
        assert!(lost(&of(&job(1, &json!({"command": command, "resources": gpus(8)})))).is_empty(), "{line}");
    }
    let several = lost(&of(&job(4, &json!({"command": ["./train"], "resources": gpus(1)}))));
    assert!(
        several.len() == 1 && several[0].contains("a plan may give a worker several GPUs"),
        "{several:?}"
    );
}

#[test]
fn other_devices_are_named_and_keep_no_pod_from_its_node() {
    for device in
        ["amd.com/gpu", "gpu.intel.com/i915", "habana.ai/gaudi", "google.com/tpu", "aws.amazon.com/neuron"]
    {
        let one =
            of(&job(1, &json!({"command": ["torchrun", "train.py"], "resources": {"limits": {device: 8}}})));
        let container = &one.job["spec"]["template"]["spec"]["containers"][0];
        assert!(container["resources"].is_null(), "{container}");
        let lost = lost(&one);
        assert!(
            lost.iter().any(|note| note.starts_with(&format!("{device}: 8 of them are asked for"))),
            "{lost:?}"
        );
        assert!(!lost.iter().any(|note| note.contains("asks for no GPU")), "{lost:?}");
    }
    let mut claims = job(1, &json!({"command": ["torchrun", "train.py"]}));
    claims["spec"]["template"]["spec"]["resourceClaims"] =
        json!([{"name": "gpus", "resourceClaimTemplateName": "eight"}]);
    let lost = lost(&of(&claims));
    assert!(lost.iter().any(|note| note.contains("set gpus.min")), "{lost:?}");
}

#[test]
fn the_role_with_gpus_trains() {
    let pod = |resources: Value| {
        let container =
            json!({"name": "pytorch", "image": "i", "command": ["torchrun", "a.py"], "resources": resources});
        json!({"spec": {"containers": [container]}})
    };
    let one = of(
        &json!({"apiVersion": "kubeflow.org/v1", "kind": "PyTorchJob", "metadata": {"name": "roles"}, "spec": {
            "pytorchReplicaSpecs": {
                "Master": {"template": pod(json!({"limits": {"cpu": "2"}}))},
                "Worker": {"replicas": 4, "template": pod(gpus(8))},
            },
        }}),
    );
    assert_eq!(one.job["spec"]["gpus"], json!({"min": 32, "maxNodes": 4}));
    assert!(lost(&one).iter().any(|note| note.contains("Master.template: has no GPUs")), "{:?}", lost(&one));

    let group = |name: &str, resources: Value| {
        let template = json!({"spec": {"containers": [{"name": "w", "image": "i", "resources": resources}]}});
        json!({"groupName": name, "replicas": 2, "minReplicas": 2, "maxReplicas": 2, "template": template})
    };
    let one =
        of(&json!({"apiVersion": "ray.io/v1", "kind": "RayJob", "metadata": {"name": "groups"}, "spec": {
            "entrypoint": "python a.py",
            "rayClusterSpec": {
                "headGroupSpec": {"template": {"spec": {"containers": [{"name": "head", "image": "i"}]}}},
                "workerGroupSpecs": [group("cpus", json!({"limits": {"cpu": "2"}})), group("gpus", gpus(4))],
            },
        }}));
    assert_eq!(one.job["spec"]["gpus"], json!({"min": 8, "maxNodes": 2}));
}

#[test]
fn names_that_only_the_old_controller_gives_are_lost() {
    let index = "metadata.annotations['batch.kubernetes.io/job-completion-index']";
    let container = json!({
        "command": ["torchrun", "--rank", "$(JOB_COMPLETION_INDEX)", "--leader", "plain-ddp-0.plain-ddp:29500"],
        "env": [
            {"name": "PROCESS_ID", "valueFrom": {"fieldRef": {"fieldPath": index}}},
            {"name": "NODE", "valueFrom": {"fieldRef": {"fieldPath": "spec.nodeName"}}},
            {"name": "OUT", "value": "/out/plain-ddp-2/x.1"},
        ],
        "resources": gpus(4),
    });
    let lost = lost(&of(&job(4, &container)));
    let has = |start: &str| assert!(lost.iter().any(|note| note.starts_with(start)), "{start} {lost:?}");
    has("spec.template.spec.containers[0].command[2]: JOB_COMPLETION_INDEX is not set: use PET_NODE_RANK");
    has("spec.template.spec.containers[0].command[4]: plain-ddp-0.plain-ddp is no host any more");
    has("spec.template.spec.containers[0].env[0].valueFrom.fieldRef.fieldPath: ");
    assert_eq!(lost.len(), 3, "{lost:?}");
    let shell = json!({"command": ["sh", "-c", "torchrun train.py --rank $JOB_COMPLETION_INDEX"], "resources": gpus(4)});
    assert_eq!(self::lost(&of(&job(4, &shell))).len(), 1);
}
