//! Rules by which platforms admit pods, and the chart's pods with the values for each platform: no cluster is needed.
//! `api_platforms` asks a real API server what of this it checks itself.

use andreas_e2e::chart::SYSTEM;
use serde_json::{Value, json};

use super::chart_golden::{SETS, render};

/// Kinds of volumes that the Pod Security Standard `restricted` admits.
const VOLUMES: [&str; 8] = [
    "configMap",
    "csi",
    "downwardAPI",
    "emptyDir",
    "ephemeral",
    "persistentVolumeClaim",
    "projected",
    "secret",
];

async fn objects(set: &str) -> Vec<Value> {
    let (_, values) = SETS.iter().find(|(name, _)| *name == set).unwrap();
    let texts = render(values).await.unwrap();
    texts.values().map(|text| serde_saphyr::from_str(text).unwrap()).collect()
}

/// Namespace and pod of each template.
fn pods(objects: &[Value]) -> Vec<(&str, &Value)> {
    let templates = objects.iter().filter_map(|object| {
        let pod = object.pointer("/spec/template/spec")?;
        Some((object["metadata"]["namespace"].as_str().unwrap(), pod))
    });
    templates.collect()
}

/// Pods of the namespace that has nothing of the node agents, or those of the agents.
fn pods_of(objects: &[Value], agents: bool) -> Vec<&Value> {
    let restricted = [SYSTEM, "andreas-power"];
    let pods = pods(objects).into_iter().filter(|(namespace, _)| restricted.contains(namespace) != agents);
    pods.map(|(_, pod)| pod).collect()
}

fn list(value: &Value) -> impl Iterator<Item = &Value> {
    value.as_array().into_iter().flatten()
}

fn containers(pod: &Value) -> impl Iterator<Item = &Value> {
    list(&pod["initContainers"]).chain(list(&pod["containers"])).chain(list(&pod["ephemeralContainers"]))
}

/// A field of a container's security context, or else of its pod's.
fn effective<'a>(pod: &'a Value, container: &'a Value, field: &str) -> &'a Value {
    match &container["securityContext"][field] {
        Value::Null => &pod["securityContext"][field],
        own => own,
    }
}

/// Kind of a volume: the one field that is not its name.
fn volume_kind(volume: &Value) -> &str {
    volume.as_object().unwrap().keys().find(|key| *key != "name").unwrap()
}

/// What the Pod Security Standard `restricted` (v1.34, Linux) refuses of a pod.
/// Source: <https://kubernetes.io/docs/concepts/security/pod-security-standards/>
fn restricted(pod: &Value) -> Vec<String> {
    let mut refused = Vec::new();
    for field in ["hostNetwork", "hostPID", "hostIPC"] {
        if pod[field] == true {
            refused.push(field.to_owned());
        }
    }
    for volume in list(&pod["volumes"]) {
        if !VOLUMES.contains(&volume_kind(volume)) {
            refused.push(format!("volume {}", volume["name"]));
        }
    }
    if list(&pod["securityContext"]["sysctls"]).next().is_some() {
        refused.push("sysctls".to_owned());
    }
    for container in containers(pod) {
        let own = &container["securityContext"];
        let mut rule = |holds: bool, what: &str| {
            if !holds {
                refused.push(format!("{}: {what}", container["name"].as_str().unwrap()));
            }
        };
        rule(own["privileged"] != true, "privileged");
        rule(own["allowPrivilegeEscalation"] == false, "allowPrivilegeEscalation");
        rule(list(&own["capabilities"]["drop"]).any(|name| name == "ALL"), "drop ALL");
        rule(list(&own["capabilities"]["add"]).all(|name| name == "NET_BIND_SERVICE"), "added capabilities");
        rule(own["procMount"].is_null() || own["procMount"] == "Default", "procMount");
        rule(effective(pod, container, "runAsNonRoot") == true, "runAsNonRoot");
        rule(effective(pod, container, "runAsUser") != 0, "runAsUser");
        let seccomp = &effective(pod, container, "seccompProfile")["type"];
        rule(seccomp == "RuntimeDefault" || seccomp == "Localhost", "seccompProfile");
        let selinux = effective(pod, container, "seLinuxOptions");
        rule(selinux["user"].is_null() && selinux["role"].is_null(), "seLinuxOptions");
        let types = ["container_t", "container_init_t", "container_kvm_t", "container_engine_t"];
        rule(selinux["type"].as_str().is_none_or(|name| types.contains(&name)), "seLinuxOptions.type");
        rule(effective(pod, container, "appArmorProfile")["type"] != "Unconfined", "appArmorProfile");
        rule(list(&container["ports"]).all(|port| port["hostPort"].is_null()), "hostPort");
        for probe in ["livenessProbe", "readinessProbe", "startupProbe"] {
            rule(container[probe]["httpGet"]["host"].is_null(), "a probe's host");
        }
    }
    refused
}

/// The SecurityContextConstraints of OpenShift for everybody. Source:
/// <https://github.com/openshift/cluster-kube-apiserver-operator/tree/master/bindata/bootkube/scc-manifests>
fn restricted_v2() -> Value {
    json!({
        "allowHostDirVolumePlugin": false,
        "allowPrivilegeEscalation": false,
        "allowPrivilegedContainer": false,
        "allowedCapabilities": ["NET_BIND_SERVICE"],
        "fsGroup": {"type": "MustRunAs"},
        "readOnlyRootFilesystem": false,
        "runAsUser": {"type": "MustRunAsRange"},
        "seLinuxContext": {"type": "MustRunAs"},
        "seccompProfiles": ["runtime/default"],
        "supplementalGroups": {"type": "RunAsAny"},
        "volumes": [
            "configMap", "csi", "downwardAPI", "emptyDir", "ephemeral", "image", "persistentVolumeClaim",
            "projected", "secret",
        ],
    })
}

/// What SecurityContextConstraints refuse of a pod. Ranges are the namespace's: a pod that names no user or group fits.
fn refused_by(constraints: &Value, pod: &Value) -> Vec<String> {
    let mut refused = Vec::new();
    let may = |field: &str| constraints[field] == true;
    for (field, allowed) in
        [("hostNetwork", "allowHostNetwork"), ("hostPID", "allowHostPID"), ("hostIPC", "allowHostIPC")]
    {
        if pod[field] == true && !may(allowed) {
            refused.push(field.to_owned());
        }
    }
    for volume in list(&pod["volumes"]) {
        let kind = volume_kind(volume);
        let known = list(&constraints["volumes"]).any(|name| name == kind);
        if !known || kind == "hostPath" && !may("allowHostDirVolumePlugin") {
            refused.push(format!("volume {}", volume["name"]));
        }
    }
    if constraints["fsGroup"]["type"] != "RunAsAny" && !pod["securityContext"]["fsGroup"].is_null() {
        refused.push("fsGroup".to_owned());
    }
    for container in containers(pod) {
        let own = &container["securityContext"];
        let mut rule = |holds: bool, what: &str| {
            if !holds {
                refused.push(format!("{}: {what}", container["name"].as_str().unwrap()));
            }
        };
        rule(own["privileged"] != true || may("allowPrivilegedContainer"), "privileged");
        rule(
            own["allowPrivilegeEscalation"] != true || may("allowPrivilegeEscalation"),
            "allowPrivilegeEscalation",
        );
        rule(
            own["readOnlyRootFilesystem"] == true || !may("readOnlyRootFilesystem"),
            "readOnlyRootFilesystem",
        );
        let allowed = |name: &Value| list(&constraints["allowedCapabilities"]).any(|known| known == name);
        rule(list(&own["capabilities"]["add"]).all(allowed), "capabilities");
        for (field, strategy) in [("runAsUser", "runAsUser"), ("seLinuxOptions", "seLinuxContext")] {
            let any = constraints[strategy]["type"] == "RunAsAny";
            rule(any || effective(pod, container, field).is_null(), field);
        }
        let seccomp = &effective(pod, container, "seccompProfile")["type"];
        rule(seccomp.is_null() || seccomp == "RuntimeDefault", "seccompProfile");
    }
    refused
}

#[tokio::test]
async fn pods_beside_the_agents_pass_the_restricted_standard_with_every_set_of_values() {
    for (set, _) in SETS.iter().filter(|(set, _)| *set != "extras") {
        let objects = objects(set).await;
        let system = pods_of(&objects, false);
        assert!(!system.is_empty(), "{set}");
        for pod in system {
            assert_eq!(restricted(pod), Vec::<String>::new(), "{set}");
        }
        let agents = pods_of(&objects, true);
        assert_eq!(agents.len(), usize::from(*set != "agent-off"), "{set}");
    }
}

/// The rules find what agents need more: a test of the rules, and of what the page on rights says.
#[tokio::test]
async fn agents_need_what_only_a_privileged_namespace_admits() {
    let objects = objects("default").await;
    let refused = restricted(pods_of(&objects, true)[0]);
    for rule in ["volume \"pod-resources\"", "agent: runAsUser", "setter: added capabilities"] {
        assert!(refused.iter().any(|found| found == rule), "{rule}: {refused:?}");
    }
    assert!(!refused.iter().any(|found| found.contains("allowPrivilegeEscalation")), "{refused:?}");
    let namespace = objects.iter().find(|object| object["kind"] == "Namespace").unwrap();
    assert_eq!(namespace["metadata"]["labels"]["pod-security.kubernetes.io/enforce"], "privileged");
}

/// The API server refuses a privileged container that may not gain privileges; and what is dropped would not be.
#[tokio::test]
async fn privileged_agents_see_devices_and_contradict_nothing() {
    for set in ["gke", "own-names", "extras"] {
        let objects = objects(set).await;
        let daemon_set = objects.iter().find(|object| object["kind"] == "DaemonSet").unwrap();
        let pod = &daemon_set["spec"]["template"]["spec"];
        assert_eq!(list(&pod["containers"]).count(), 3);
        for container in containers(pod) {
            let context = &container["securityContext"];
            assert_eq!(context["privileged"], true, "{set}");
            assert!(context["allowPrivilegeEscalation"].is_null(), "{set}: {context}");
            assert!(context["capabilities"].is_null(), "{set}: {context}");
        }
    }
    let objects = objects("default").await;
    assert!(pods_of(&objects, true).iter().flat_map(|pod| containers(pod)).all(|container| {
        container["securityContext"]["privileged"].is_null()
            && container["securityContext"]["allowPrivilegeEscalation"] == false
    }));
}

/// On GKE nothing but a volume brings the driver, so the library must be in one, in every container.
#[tokio::test]
async fn on_gke_the_management_library_is_in_a_volume_of_each_container() {
    let objects = objects("gke").await;
    let pod = pods_of(&objects, true)[0];
    for container in containers(pod) {
        let library = list(&container["args"])
            .filter_map(Value::as_str)
            .find_map(|argument| argument.strip_prefix("--nvml-library="))
            .unwrap();
        let mount = list(&container["volumeMounts"])
            .find(|mount| library.starts_with(&format!("{}/", mount["mountPath"].as_str().unwrap())))
            .unwrap();
        assert_eq!(mount["readOnly"], true);
        let volume = list(&pod["volumes"]).find(|volume| volume["name"] == mount["name"]).unwrap();
        assert_eq!(volume["hostPath"]["path"], "/home/kubernetes/bin/nvidia");
    }
}

#[tokio::test]
async fn on_openshift_the_constraints_admit_all_pods_and_without_its_values_none() {
    let plain = objects("default").await;
    let system = pods_of(&plain, false);
    // Operator, scheduler, and the pod of helm test, which has no volume.
    assert_eq!(system.len(), 3);
    for pod in system {
        let refused = refused_by(&restricted_v2(), pod);
        assert!(refused.iter().any(|found| found.ends_with("runAsUser")), "{refused:?}");
        let groups = pod["securityContext"]["fsGroup"].is_number();
        assert_eq!(refused.iter().any(|found| found == "fsGroup"), groups, "{refused:?}");
    }

    let objects = objects("openshift").await;
    for pod in pods_of(&objects, false) {
        assert_eq!(refused_by(&restricted_v2(), pod), Vec::<String>::new());
    }
    let agents = pods_of(&objects, true);
    let [agent] = agents[..] else { panic!("{agents:?}") };
    assert!(!refused_by(&restricted_v2(), agent).is_empty());
    let find = |kind: &str, name: &str| {
        let found = objects.iter().find(|o| o["kind"] == kind && o["metadata"]["name"] == name);
        found.unwrap_or_else(|| panic!("{kind} {name}"))
    };
    let constraints = find("SecurityContextConstraints", "andreas-node-agent");
    assert_eq!(refused_by(constraints, agent), Vec::<String>::new());
    assert_eq!(constraints["allowPrivilegedContainer"], false);

    let role = find("Role", "andreas-node-agent-scc");
    assert_eq!(role["rules"][0]["resourceNames"][0], constraints["metadata"]["name"]);
    let binding = find("RoleBinding", "andreas-node-agent-scc");
    assert_eq!(binding["subjects"][0]["name"], agent["serviceAccountName"]);
    assert_eq!(binding["metadata"]["namespace"], binding["subjects"][0]["namespace"]);
    for policy in objects.iter().filter(|object| object["kind"] == "NetworkPolicy") {
        assert!(
            list(&policy["spec"]["egress"]).flat_map(|rule| list(&rule["ports"])).any(|p| p["port"] == 5353)
        );
    }
}

/// What NVIDIA's driver manager and MIG manager write into the labels of a node's other parts, in any order, and nodes of virtual machines.
#[tokio::test]
async fn agents_leave_a_node_whose_driver_is_replaced_and_stay_off_those_without_one_for_containers() {
    let objects = objects("default").await;
    let pod = pods_of(&objects, true)[0];
    let required = &pod["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"];
    let runs = |labels: &[(&str, &str)]| {
        let label = |key: &Value| labels.iter().find(|(name, _)| key == name).map(|(_, value)| *value);
        let holds = |expression: &Value| {
            let value = label(&expression["key"]);
            let listed = value.is_some_and(|value| list(&expression["values"]).any(|one| one == value));
            match expression["operator"].as_str() {
                Some("In") => listed,
                Some("NotIn") => !listed,
                _ => value.is_some(),
            }
        };
        list(&required["nodeSelectorTerms"]).any(|term| list(&term["matchExpressions"]).all(holds))
    };
    let gpus = ("nvidia.com/gpu.present", "true");
    assert!(runs(&[gpus, ("nvidia.com/gpu.deploy.dcgm-exporter", "false")]) && !runs(&[]));
    let (upgrade, mig) = ("paused-for-driver-upgrade", "paused-for-mig-change");
    for part in ["dcgm-exporter", "device-plugin", "operator-validator", "client"] {
        let part = format!("nvidia.com/gpu.deploy.{part}");
        for paused in [upgrade, mig, &format!("{mig}_{upgrade}"), &format!("{upgrade}_{mig}")] {
            assert!(!runs(&[gpus, (&part, paused)]), "{part} {paused}");
        }
    }
    for config in ["vm-passthrough", "vm-vgpu"] {
        assert!(!runs(&[gpus, ("nvidia.com/gpu.workload.config", config)]), "{config}");
    }
    assert!(runs(&[gpus, ("nvidia.com/gpu.workload.config", "container")]));
}

/// With the container toolkit's setting against NVIDIA_VISIBLE_DEVICES in pods of tenants, a container names its GPUs by mounts.
#[tokio::test]
async fn a_hardened_container_toolkit_gives_agents_and_setters_their_gpus() {
    let objects = objects("default").await;
    let pod = pods_of(&objects, true)[0];
    let null = json!({"name": "visible-devices", "hostPath": {"path": "/dev/null", "type": "CharDevice"}});
    assert!(list(&pod["volumes"]).any(|volume| *volume == null));
    let all = json!({"name": "visible-devices", "mountPath": "/var/run/nvidia-container-devices/all"});
    assert!(containers(pod).all(|container| list(&container["volumeMounts"]).any(|mount| *mount == all)));
}

/// Where all other nodes have GPUs and a taint of their own, these pods find a node only in a system pool.
#[tokio::test]
async fn on_aks_all_pods_beside_the_agents_tolerate_the_taint_of_system_pools() {
    let objects = objects("aks").await;
    let of_kind = |kind: &'static str| objects.iter().filter(move |object| object["kind"] == kind);
    let deployed = of_kind("Deployment").map(|object| &object["spec"]["template"]["spec"]);
    let pods: Vec<&Value> = deployed.chain(of_kind("Pod").map(|object| &object["spec"])).collect();
    // Operator, scheduler, and the pod of helm test that waits.
    assert_eq!(pods.len(), 3);
    for pod in pods {
        let wanted = json!({"key": "CriticalAddonsOnly", "operator": "Exists"});
        assert!(list(&pod["tolerations"]).any(|toleration| *toleration == wanted), "{pod}");
    }
}

/// Every pod with a critical PriorityClass has a quota in its namespace that names the class.
#[tokio::test]
async fn on_gke_quotas_name_the_priority_classes_of_all_pods() {
    let uncovered = |objects: &[Value]| {
        let critical = |(_, pod): &(&str, &Value)| pod["priorityClassName"].is_string();
        let pods = pods(objects).into_iter().filter(critical).filter(|(namespace, pod)| {
            !objects.iter().filter(|object| object["kind"] == "ResourceQuota").any(|quota| {
                quota["metadata"]["namespace"] == *namespace
                    && list(&quota["spec"]["scopeSelector"]["matchExpressions"]).any(|expression| {
                        expression["scopeName"] == "PriorityClass"
                            && list(&expression["values"]).any(|class| *class == pod["priorityClassName"])
                    })
            })
        });
        pods.count()
    };
    assert_eq!(uncovered(&objects("default").await), 3);
    assert_eq!(uncovered(&objects("gke").await), 0);
    assert_eq!(uncovered(&objects("extras").await), 0);
}

/// A policy that is named as disabled goes with its binding, and no other does.
#[tokio::test]
async fn policies_are_left_out_one_by_one() {
    let names = |objects: &[Value], kind: &str| -> Vec<String> {
        let found = objects.iter().filter(|object| object["kind"] == kind);
        found.map(|object| object["metadata"]["name"].as_str().unwrap().to_owned()).collect()
    };
    for kind in ["ValidatingAdmissionPolicy", "ValidatingAdmissionPolicyBinding"] {
        assert_eq!(names(&objects("default").await, kind).len(), 9);
        let left = names(&objects("extras").await, kind);
        let kept = ["adopts", "devices", "gpunode-status", "max-weight", "pods", "scheduler-account"];
        assert_eq!(left, kept.map(|policy| format!("andreas-{policy}")));
    }
}
