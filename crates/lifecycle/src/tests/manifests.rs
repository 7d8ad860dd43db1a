use andreas_api::training_job::Allocation;
use k8s_openapi::api::core::v1::{EnvVar, Pod};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use serde_json::{Value, json};

use super::world::*;
use crate::*;

fn allocation(nodes: &[&str], gpus: i32) -> Allocation {
    Allocation {
        attempt: 3,
        generation: 17,
        gpu_type: "A100".into(),
        gpus: gpus * i32::try_from(nodes.len()).unwrap(),
        gpus_per_worker: gpus,
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
    }
}

fn member(world: &World, nodes: &[&str], gpus: i32, index: usize) -> (Pod, Value) {
    let pod = pods::member(&world.job, &allocation(nodes, gpus), index, &world.nodes, &world.settings);
    let json = serde_json::to_value(&pod).unwrap();
    (pod, json)
}

fn env(pod: &Pod) -> Vec<(String, String)> {
    let all: Vec<EnvVar> = pod.spec.as_ref().unwrap().containers[0].env.clone().unwrap_or_default();
    all.into_iter().map(|e| (e.name, e.value.unwrap_or_default())).collect()
}

#[test]
fn a_plain_worker_is_pinned_owned_and_never_restarted() {
    let world = World::new(json!({}));
    let (pod, json) = member(&world, &["n1"], 2, 0);
    assert_eq!(
        json["metadata"],
        json!({
            "name": "bert-3-0", "namespace": "team",
            "labels": {"andreas.dev/job": "bert", "andreas.dev/job-uid": "12345678-job", "andreas.dev/attempt": "3",
                "andreas.dev/index": "0", "andreas.dev/allocation": "17", "app.kubernetes.io/name": "andreas-training",
                "app.kubernetes.io/instance": "bert", "app.kubernetes.io/component": "worker",
                "app.kubernetes.io/managed-by": "andreas-operator"},
            "annotations": {"andreas.dev/boot-id": "boot-1", "cluster-autoscaler.kubernetes.io/safe-to-evict": "false",
                "karpenter.sh/do-not-disrupt": "true"},
            "ownerReferences": [{"apiVersion": "andreas.dev/v1alpha1", "kind": "TrainingJob", "name": "bert",
                "uid": "12345678-job", "controller": true, "blockOwnerDeletion": true}],
        })
    );
    let spec = &json["spec"];
    assert_eq!(
        spec["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"],
        json!({
        "nodeSelectorTerms": [{"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["n1"]}]}]})
    );
    assert_eq!(
        spec["tolerations"],
        json!([
        {"key": "node.kubernetes.io/not-ready", "operator": "Exists", "effect": "NoExecute"},
        {"key": "node.kubernetes.io/unreachable", "operator": "Exists", "effect": "NoExecute"},
        {"key": "nvidia.com/gpu", "operator": "Exists"}])
    );
    for (field, value) in [
        ("restartPolicy", json!("Never")),
        ("schedulerName", json!("andreas")),
        ("priorityClassName", json!("andreas-training")),
        ("terminationGracePeriodSeconds", json!(30)),
        ("hostname", Value::Null),
        ("subdomain", Value::Null),
    ] {
        assert_eq!(spec[field], value, "{field}");
    }
    let container = &spec["containers"][0];
    assert_eq!(
        container["resources"],
        json!({"limits": {"nvidia.com/gpu": "2"}, "requests": {"nvidia.com/gpu": "2"}})
    );
    assert_eq!(container["terminationMessagePolicy"], "FallbackToLogsOnError");
    assert!(env(&pod).contains(&("PET_MASTER_ADDR".into(), "127.0.0.1".into())));
    assert_eq!(pods::gang_service(&world.job, &allocation(&["n1"], 2)), None);
}

#[test]
fn a_gang_finds_its_first_member_by_name() {
    let world = World::new(json!({}));
    let (pod, json) = member(&world, &["n2", "n1"], 4, 1);
    let wanted = [
        ("PET_NNODES", "2"),
        ("PET_NPROC_PER_NODE", "4"),
        ("PET_NODE_RANK", "1"),
        ("PET_MASTER_ADDR", "bert-3-0.bert-gang-12345.team.svc"),
        ("PET_MASTER_PORT", "29500"),
        ("ANDREAS_ATTEMPT", "3"),
        ("ANDREAS_GPU_TYPE", "A100"),
    ];
    for (name, value) in wanted {
        assert!(env(&pod).contains(&(name.into(), value.into())), "{name}");
    }
    assert_eq!(
        (&json["spec"]["hostname"], &json["spec"]["subdomain"]),
        (&json!("bert-3-1"), &json!("bert-gang-12345"))
    );
    let service =
        serde_json::to_value(pods::gang_service(&world.job, &allocation(&["n2", "n1"], 4))).unwrap();
    assert_eq!(service["metadata"]["name"], "bert-gang-12345");
    assert_eq!(service["metadata"]["ownerReferences"][0]["uid"], "12345678-job");
    assert_eq!(
        (&service["spec"]["clusterIP"], &service["spec"]["publishNotReadyAddresses"]),
        (&json!("None"), &json!(true))
    );
    assert_eq!(
        service["spec"]["selector"],
        json!({"andreas.dev/job": "bert", "andreas.dev/job-uid": "12345678-job"})
    );
}

#[test]
fn progress_and_checkpoint_reach_the_training_container_only() {
    let mut world = World::new(json!({
        "container": "train", "checkpoint": {"claimName": "ckpt", "path": "/save", "graceSeconds": 300},
        "template": {"spec": {"containers": [{"name": "logs", "image": "l"}, {"name": "train", "image": "t"}]}}}));
    world.settings.progress =
        Some(ProgressEndpoint { base_url: "https://op.andreas.svc:8443/".into(), ca_pem: "PEM".into() });
    let (pod, json) = member(&world, &["n1"], 1, 0);
    assert_eq!(json["metadata"]["annotations"]["andreas.dev/progress-ca"], "PEM");
    assert_eq!(json["spec"]["terminationGracePeriodSeconds"], 300);
    assert_eq!(
        json["spec"]["volumes"],
        json!([
        {"name": "andreas-shared-memory", "emptyDir": {"medium": "Memory"}},
        {"name": "andreas-checkpoint", "persistentVolumeClaim": {"claimName": "ckpt"}},
        {"name": "andreas-progress", "projected": {"sources": [
            {"serviceAccountToken": {"audience": "andreas.dev/progress/12345678-job", "expirationSeconds": 3600, "path": "token"}},
            {"downwardAPI": {"items": [{"path": "ca.crt", "fieldRef": {"apiVersion": "v1", "fieldPath": "metadata.annotations['andreas.dev/progress-ca']"}}]}}]}}])
    );
    assert_eq!(
        json["spec"]["containers"][0],
        json!({"name": "logs", "image": "l", "terminationMessagePolicy": "FallbackToLogsOnError",
            "env": [{"name": "NVIDIA_VISIBLE_DEVICES", "value": "void"}]}),
        "it has no GPU, whatever its image asks for"
    );
    let train = &json["spec"]["containers"][1];
    assert_eq!(
        train["volumeMounts"],
        json!([
        {"name": "andreas-checkpoint", "mountPath": "/save"},
        {"name": "andreas-shared-memory", "mountPath": "/dev/shm"},
        {"name": "andreas-progress", "mountPath": "/var/run/secrets/andreas.dev/progress", "readOnly": true}])
    );
    assert_eq!(train["resources"]["limits"]["nvidia.com/gpu"], "1");
    let all: Vec<EnvVar> = pod.spec.unwrap().containers[1].env.clone().unwrap();
    let value = |name: &str| all.iter().find(|e| e.name == name).unwrap().value.clone().unwrap();
    assert_eq!(value("CHECKPOINT_DIR"), "/save");
    assert_eq!(
        value("KUBEFLOW_TRAINER_SERVER_URL"),
        "https://op.andreas.svc:8443/apis/trainer.kubeflow.org/v1alpha1/namespaces/team/trainjobs/bert/status"
    );
    assert_eq!(value("KUBEFLOW_TRAINER_SERVER_TOKEN"), "/var/run/secrets/andreas.dev/progress/token");
}

#[test]
fn requests_are_those_of_a_worker_or_of_one_gpu() {
    let resources = json!({"requests": {"cpu": "500m", "memory": "1.5Gi"}, "limits": {"memory": "2Gi"}});
    let template = json!({"spec": {"containers": [{"name": "train", "resources": resources}],
        "initContainers": [{"name": "data", "resources": resources}]}});
    let mut world = World::new(json!({"template": template}));
    let (_, json) = member(&world, &["n1"], 4, 0);
    assert_eq!(
        json["spec"]["containers"][0]["resources"]["requests"],
        json!({"cpu": "500m", "memory": "1.5Gi", "nvidia.com/gpu": "4"})
    );
    world.edit(json!({"resourcesPer": "Gpu"}));
    let (_, json) = member(&world, &["n1"], 4, 0);
    let container = &json["spec"]["containers"][0]["resources"];
    assert_eq!(container["requests"], json!({"cpu": "2000m", "memory": "6Gi", "nvidia.com/gpu": "4"}));
    assert_eq!(container["limits"], json!({"memory": "8Gi", "nvidia.com/gpu": "4"}));
    assert_eq!(json["spec"]["initContainers"][0]["resources"], resources);
}

#[test]
fn gpus_that_share_a_device_get_a_whole_one() {
    let limits = json!({"rdma/hca": "0.166", "example.com/nic": "1", "memory": "1.5Gi"});
    let template = json!({"spec": {"containers": [{"name": "train", "resources": {"limits": limits}}]}});
    let world = World::new(json!({"template": template, "resourcesPer": "Gpu"}));
    for (gpus, hcas, nics) in [(1, "1", "1"), (6, "1", "6"), (7, "2", "7"), (12, "2", "12")] {
        let (_, json) = member(&world, &["n1"], gpus, 0);
        let limits = &json["spec"]["containers"][0]["resources"]["limits"];
        assert_eq!((&limits["rdma/hca"], &limits["example.com/nic"]), (&json!(hcas), &json!(nics)), "{gpus}");
    }
}

#[test]
fn the_pin_goes_into_every_alternative_of_the_users_affinity() {
    let required = json!({"nodeSelectorTerms": [
        {"matchExpressions": [{"key": "zone", "operator": "In", "values": ["a"]}]},
        {"matchExpressions": [{"key": "zone", "operator": "In", "values": ["b"]}], "matchFields": [{"key": "metadata.name", "operator": "NotIn", "values": ["n9"]}]},
        {}]});
    let world = World::new(json!({"template": {"spec": {"affinity": {"nodeAffinity": {
        "requiredDuringSchedulingIgnoredDuringExecution": required}}}}}));
    let (_, json) = member(&world, &["n1"], 1, 0);
    let terms = &json["spec"]["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]["nodeSelectorTerms"];
    let pin = json!([{"key": "metadata.name", "operator": "In", "values": ["n1"]}]);
    assert_eq!(terms.as_array().unwrap().len(), 2);
    for term in terms.as_array().unwrap() {
        assert_eq!(term["matchFields"], pin);
        assert!(term["matchExpressions"].is_array());
    }
}

#[test]
fn what_is_ours_to_set_wins_over_a_template_that_slipped_through() {
    let world = World::new(json!({"template": {
    "metadata": {"labels": {"team": "x", "andreas.dev/job-uid": "forged"}},
    "spec": {
        "nodeName": "n9", "schedulerName": "default-scheduler", "priorityClassName": "system-cluster-critical",
        "restartPolicy": "Always", "hostname": "h", "subdomain": "s", "activeDeadlineSeconds": 5,
        "schedulingGates": [{"name": "g"}],
        "tolerations": [{"key": "node.kubernetes.io/unreachable", "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 5}],
        "containers": [
            {"name": "train", "restartPolicy": "Always", "terminationMessagePolicy": "File",
             "resources": {"limits": {"nvidia.com/gpu": "8"}}, "env": [{"name": "PET_NNODES", "value": "9"}, {"name": "MINE", "value": "$(PET_NNODES)"}]},
            {"name": "side", "resources": {"limits": {"nvidia.com/gpu": "8"}}}],
    }}}));
    let (pod, json) = member(&world, &["n1"], 1, 0);
    let spec = &json["spec"];
    for field in ["nodeName", "hostname", "subdomain", "activeDeadlineSeconds", "schedulingGates"] {
        assert_eq!(spec[field], Value::Null, "{field}");
    }
    assert_eq!((&spec["restartPolicy"], &spec["schedulerName"]), (&json!("Never"), &json!("andreas")));
    assert_eq!(
        (&json["metadata"]["labels"]["andreas.dev/job-uid"], &json["metadata"]["labels"]["team"]),
        (&json!("12345678-job"), &json!("x"))
    );
    assert_eq!(spec["tolerations"].as_array().unwrap().len(), 3);
    assert_eq!(spec["containers"][0]["restartPolicy"], Value::Null);
    assert_eq!(spec["containers"][0]["terminationMessagePolicy"], "File");
    assert_eq!(spec["containers"][0]["resources"]["limits"], json!({"nvidia.com/gpu": "1"}));
    assert_eq!(spec["containers"][1]["resources"]["limits"], json!({}));
    let env = env(&pod);
    assert_eq!(
        env.iter().filter(|(n, _)| n == "PET_NNODES").collect::<Vec<_>>(),
        [&("PET_NNODES".to_owned(), "1".to_owned())]
    );
    assert_eq!(env.last().unwrap().0, "MINE");
}

#[test]
fn in_affinity_mode_the_clusters_own_scheduler_binds_the_same_pinned_pods() {
    let mut world = World::new(json!({}));
    world.settings.scheduler = None;
    let (_, json) = member(&world, &["n1"], 1, 0);
    assert_eq!(json["spec"]["schedulerName"], Value::Null);
    assert!(json["spec"]["affinity"]["nodeAffinity"].is_object());
}

#[test]
fn a_mount_of_the_users_own_stays() {
    let world = World::new(
        json!({"checkpoint": {"claimName": "ckpt", "path": "/save"}, "template": {"spec": {"containers": [
        {"name": "train", "volumeMounts": [{"name": "mine", "mountPath": "/save/"}, {"name": "shm", "mountPath": "/dev/shm"}]}]}}}),
    );
    let (_, json) = member(&world, &["n1"], 1, 0);
    assert_eq!(
        json["spec"]["containers"][0]["volumeMounts"],
        json!([{"name": "mine", "mountPath": "/save/"}, {"name": "shm", "mountPath": "/dev/shm"}])
    );
}

#[test]
fn node_autoscalers_are_asked_to_leave_a_worker_alone_unless_its_template_says_otherwise() {
    let key = "cluster-autoscaler.kubernetes.io/safe-to-evict";
    let template = json!({"template": {"metadata": {"annotations": {key: "true"}}, "spec": {"containers": [{"name": "t"}]}}});
    let (pod, _) = member(&World::new(template), &["n1"], 1, 0);
    let annotations = pod.metadata.annotations.unwrap_or_default();
    assert_eq!(annotations.get(key).map(String::as_str), Some("true"));
    assert_eq!(annotations.get("karpenter.sh/do-not-disrupt").map(String::as_str), Some("true"));
}

#[test]
fn shared_memory_has_a_size_if_the_job_gives_one() {
    let volumes = |spec: Value| member(&World::new(spec), &["n1"], 1, 0).1["spec"]["volumes"].clone();
    let sized =
        json!([{"name": "andreas-shared-memory", "emptyDir": {"medium": "Memory", "sizeLimit": "2048Mi"}}]);
    assert_eq!(volumes(json!({"sharedMemoryMiB": 2048})), sized);
    assert_eq!(volumes(json!({"sharedMemoryMiB": 0})), Value::Null);
    let template = json!({"spec": {"hostIPC": true, "containers": [{"name": "train"}]}});
    assert_eq!(volumes(json!({"template": template})), Value::Null, "the node's own");
}

#[test]
fn a_program_without_torchrun_finds_its_peers_by_plain_names() {
    let world = World::new(json!({"rendezvous": "Env"}));
    let (pod, _) = member(&world, &["n2", "n1"], 4, 1);
    let env = env(&pod);
    let wanted = [
        ("MASTER_ADDR", "bert-3-0.bert-gang-12345.team.svc"),
        ("MASTER_PORT", "29500"),
        ("RANK", "1"),
        ("WORLD_SIZE", "2"),
        ("PET_NNODES", "2"),
    ];
    for (name, value) in wanted {
        assert!(env.contains(&(name.into(), value.into())), "{name}");
    }
    let (pod, _) = member(&World::new(json!({})), &["n2", "n1"], 4, 1);
    assert!(self::env(&pod).iter().all(|(name, _)| name != "RANK"), "only where a job asks for them");
}

#[test]
fn gangs_in_the_nodes_network_have_a_port_of_each_attempt_and_find_their_names() {
    let on_host = json!({"template": {"spec": {"hostNetwork": true, "containers": [{"name": "train"}]}}});
    let port = |world: &World, attempt: i64| {
        let allocation = Allocation { attempt, ..allocation(&["n1", "n2"], 1) };
        let pod = pods::member(&world.job, &allocation, 1, &world.nodes, &world.settings);
        let port = env(&pod).into_iter().find(|(name, _)| name == "PET_MASTER_PORT").unwrap().1;
        (port.parse::<u16>().unwrap(), pod.spec.unwrap().dns_policy)
    };
    let mut world = World::new(on_host);
    let (first, dns) = port(&world, 1);
    assert_eq!(dns.as_deref(), Some("ClusterFirstWithHostNet"));
    assert_eq!(port(&world, 1).0, first, "all members of a gang have the same");
    let (second, _) = port(&world, 2);
    world.job.metadata.uid = Some("another-job".into());
    let (other, _) = port(&world, 1);
    assert!(first != second && first != other && second != other);
    assert!([first, second, other].iter().all(|port| (20_000..29_500).contains(port)));
    assert_eq!(port(&World::new(json!({})), 1), (29_500, None));
}
