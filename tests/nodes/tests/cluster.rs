//! Pretend kubelets against a real control plane.
#![allow(clippy::unwrap_used, reason = "helpers of tests fail as tests do")]

mod common;

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use andreas_test_nodes::{Fault, Forward, Refusal};
use andreas_testbed::Component;
use common::{Bed, pod, status};
use serde_json::{Value, json};

#[tokio::test(flavor = "multi_thread")]
async fn two_workers_of_a_gang_meet_by_name_train_and_stop_in_order() {
    // given a headless Service and two pods that look for each other by name
    let bed = Bed::start(
        "nodes: [{namePrefix: a100-, count: 2, gpu: NVIDIA-A100-SXM4-80GB, gpus: 4, gpuMemoryMiB: 81920}]",
    )
    .await;
    bed.apply(json!({
        "apiVersion": "v1", "kind": "Service", "metadata": {"name": "gang"},
        "spec": {"clusterIP": "None", "publishNotReadyAddresses": true, "selector": {"gang": "yes"}},
    }))
    .await;
    let worker = |rank: usize, epochs: u32| {
        let env = [
            ("PET_NNODES", "2".to_owned()),
            ("PET_NPROC_PER_NODE", "4".to_owned()),
            ("PET_NODE_RANK", rank.to_string()),
            ("PET_MASTER_ADDR", "w-0.gang.default.svc".to_owned()),
            ("PET_MASTER_PORT", "29500".to_owned()),
            ("TRAINER_EPOCHS", epochs.to_string()),
            ("TRAINER_SECONDS_PER_EPOCH", "0.4".to_owned()),
            ("CHECKPOINT_DIR", "/checkpoint/$(RUN)".to_owned()),
        ];
        let mut all =
            vec![json!({"name": "RUN", "valueFrom": {"fieldRef": {"fieldPath": "metadata.namespace"}}})];
        all.extend(env.iter().map(|(name, value)| json!({"name": name, "value": value})));
        let mut worker = pod(
            &format!("w-{rank}"),
            json!({
                "hostname": format!("w-{rank}"), "subdomain": "gang", "terminationGracePeriodSeconds": 20,
                "volumes": [{"name": "checkpoint", "persistentVolumeClaim": {"claimName": "run"}}],
                "nodeName": format!("a100-{rank}"),
                "containers": [{
                    "name": "train", "image": "andreas.dev/trainer:dev", "env": all,
                    "volumeMounts": [{"name": "checkpoint", "mountPath": "/checkpoint"}],
                    "resources": {"limits": {"nvidia.com/gpu": "4"}},
                }],
            }),
        );
        worker["metadata"]["labels"] = json!({"gang": "yes"});
        worker
    };
    bed.apply(worker(1, 100)).await;
    bed.apply(worker(0, 100)).await;

    // then they train together
    bed.until("both Running", async || {
        bed.phase("w-0").await == "Running" && bed.phase("w-1").await == "Running"
    })
    .await;
    let checkpoint = bed.data("kubelets/claims/default/run/default/checkpoint.json");
    bed.until("a checkpoint", async || checkpoint.exists()).await;
    // and no GPU is given twice
    let pods = bed.nodes.pods().await.unwrap();
    let uuids: BTreeSet<&String> = pods.iter().flat_map(|pod| &pod.gpus).collect();
    assert_eq!((pods.len(), uuids.len()), (2, 8));
    assert!(pods.iter().all(|pod| pod.pids.len() == 1));

    // when they are deleted, then both save and leave well within their grace
    let ends = bed.last_state("w-1").await;
    let began = Instant::now();
    bed.kubectl(["delete", "pod", "w-0", "w-1"]).await;
    assert!(began.elapsed() < Duration::from_secs(8), "{:?}", began.elapsed());
    assert!(bed.log("w-0", "train").contains("stopped at step"), "{}", bed.log("w-0", "train"));
    assert!(
        bed.nodes.nodes().await.unwrap().iter().flat_map(|node| &node.gpus).all(|gpu| gpu.holder.is_none())
    );

    // and the last status before the object went says how they ended
    let ends = ends.await.unwrap();
    assert_eq!(ends["terminated"]["exitCode"], 143, "{ends}");

    // and a next attempt of the same names resumes from the checkpoint and finishes
    let done: Value = serde_json::from_slice(&std::fs::read(&checkpoint).unwrap()).unwrap();
    let epochs = done["epochsDone"].as_f64().unwrap().ceil() as u32 + 1;
    bed.apply(worker(0, epochs)).await;
    bed.apply(worker(1, epochs)).await;
    bed.until("both Succeeded", async || {
        bed.phase("w-0").await == "Succeeded" && bed.phase("w-1").await == "Succeeded"
    })
    .await;
    assert!(!bed.log("w-0", "train").lines().last().unwrap().is_empty());
    bed.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_container_sees_what_a_kubelet_gives_it() {
    let bed =
        Bed::start("nodes: [{namePrefix: t4-, count: 1, gpu: Tesla-T4, gpus: 2, gpuMemoryMiB: 15360}]").await;
    bed.kubectl(["create", "configmap", "settings", "--from-literal=color=blue", "--from-literal=file=text"])
        .await;
    bed.kubectl(["create", "secret", "generic", "keys", "--from-literal=key=s3cret"]).await;
    let script = "set -e; test \"$COLOR $KEY $CPU $NODE\" = 'blue s3cret 2 t4-0'; test $(cat /config/file) = text; \
                  test $(cat /secret/renamed) = s3cret; grep -q 'app=\"probe\"' /info/labels; \
                  echo $NVIDIA_VISIBLE_DEVICES | grep -q ^GPU-; echo scratch > /scratch/x; test $ARG = from-$COLOR; \
                  cd /var/run/secrets/kubernetes.io/serviceaccount; exec curl -sS -m 10 --cacert ca.crt \
                  -H \"Authorization: Bearer $(cat $TOKEN_FILE)\" -o /scratch/answer -w %{http_code} \
                  https://kubernetes.default.svc/api/v1/namespaces/default/pods";
    let mut probe = pod(
        "probe",
        json!({
            "volumes": [
                {"name": "config", "configMap": {"name": "settings"}},
                {"name": "secret", "secret": {"secretName": "keys", "items": [{"key": "key", "path": "renamed"}]}},
                {"name": "info", "downwardAPI": {"items": [{"path": "labels", "fieldRef": {"fieldPath": "metadata.labels"}}]}},
                {"name": "scratch", "emptyDir": {}},
                {"name": "other", "projected": {"sources": [{"serviceAccountToken": {"audience": "progress", "path": "token", "expirationSeconds": 600}}]}},
            ],
            "containers": [{
                "name": "c", "image": "busybox", "command": ["/bin/sh", "-c", script],
                "resources": {"limits": {"nvidia.com/gpu": "1", "cpu": "2"}},
                "env": [
                    {"name": "COLOR", "valueFrom": {"configMapKeyRef": {"name": "settings", "key": "color"}}},
                    {"name": "KEY", "valueFrom": {"secretKeyRef": {"name": "keys", "key": "key"}}},
                    {"name": "CPU", "valueFrom": {"resourceFieldRef": {"resource": "limits.cpu"}}},
                    {"name": "NODE", "valueFrom": {"fieldRef": {"fieldPath": "spec.nodeName"}}},
                    {"name": "ARG", "value": "from-$(COLOR)"},
                    {"name": "TOKEN_FILE", "value": "token"},
                ],
                "volumeMounts": [
                    {"name": "config", "mountPath": "/config"}, {"name": "secret", "mountPath": "/secret"},
                    {"name": "info", "mountPath": "/info"}, {"name": "scratch", "mountPath": "/scratch"},
                    {"name": "other", "mountPath": "/var/run/secrets/andreas.dev/progress", "readOnly": true},
                ],
            }],
        }),
    );
    probe["metadata"]["labels"] = json!({"app": "probe"});
    bed.apply(probe).await;
    bed.until("it ended", async || ["Succeeded", "Failed"].contains(&&*bed.phase("probe").await)).await;
    let log = bed.log("probe", "c");
    // the token is real: the API server knows the account, which may not list pods
    assert_eq!((&*bed.phase("probe").await, &*log), ("Succeeded", "403"), "{log}");

    // and a training program's report gets through TLS by the mounted CA to be answered by name and token
    let folder = "/var/run/secrets/kubernetes.io/serviceaccount";
    let env = json!([
        {"name": "KUBEFLOW_TRAINER_SERVER_URL", "value": "https://kubernetes.default.svc/api/v1/nodes"},
        {"name": "KUBEFLOW_TRAINER_SERVER_CA_CERT", "value": format!("{folder}/ca.crt")},
        {"name": "KUBEFLOW_TRAINER_SERVER_TOKEN", "value": format!("{folder}/token")},
        {"name": "TRAINER_SECONDS_PER_EPOCH", "value": "0.5"},
    ]);
    let container = json!({"name": "c", "image": "andreas.dev/trainer:dev", "env": env});
    bed.apply(pod("reports", json!({"containers": [container]}))).await;
    bed.until("reports Succeeded", async || bed.phase("reports").await == "Succeeded").await;
    assert!(
        bed.log("reports", "c").contains("progress not reported: http status: 403"),
        "{}",
        bed.log("reports", "c")
    );

    // and what is missing is waited for
    let late = json!({"containers": [{
        "name": "c", "image": "busybox", "command": ["/bin/true"],
        "env": [{"name": "X", "valueFrom": {"configMapKeyRef": {"name": "later", "key": "x"}}}],
    }]});
    bed.apply(pod("late", late)).await;
    bed.apply(pod("imageless", json!({"containers": [{"name": "c", "image": "missing/none:1"}]}))).await;
    bed.apply(pod(
        "wrong",
        json!({"containers": [{"name": "c", "image": "busybox", "command": ["no-such-program"]}]}),
    ))
    .await;
    bed.until("waiting reasons", async || {
        bed.waiting("late").await == "CreateContainerConfigError"
            && bed.waiting("imageless").await == "ImagePullBackOff"
    })
    .await;
    bed.kubectl(["create", "configmap", "later", "--from-literal=x=1"]).await;
    bed.until("late Succeeded", async || bed.phase("late").await == "Succeeded").await;
    bed.until("wrong Failed", async || bed.phase("wrong").await == "Failed").await;
    let end = status(&bed.get("pod", "wrong").await, "/containerStatuses/0/state/terminated");
    assert_eq!((&end["reason"], &end["exitCode"]), (&json!("StartError"), &json!(128)));
    bed.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn grace_faults_and_refusals_are_those_of_a_kubelet() {
    let bed =
        Bed::start("nodes: [{namePrefix: n-, count: 1, gpu: Tesla-T4, gpus: 2, gpuMemoryMiB: 15360}]").await;
    let sleeper = |name: &str, gpus: u32, fault: &str| {
        let mut sleeper = pod(
            name,
            json!({
                "nodeName": "n-0", "terminationGracePeriodSeconds": 3,
                "containers": [{
                    "name": "c", "image": "busybox", "terminationMessagePolicy": "FallbackToLogsOnError",
                    "command": ["/bin/sh", "-c", "trap 'exit 143' TERM; echo last words; sleep 1000 & wait"],
                    "resources": {"limits": {"nvidia.com/gpu": gpus.to_string()}},
                }],
            }),
        );
        sleeper["metadata"]["annotations"] =
            json!({"testbed.andreas.dev/fault": fault, "testbed.andreas.dev/fault-after-seconds": "0.5"});
        sleeper
    };
    let end = async |name: &str| status(&bed.get("pod", name).await, "/containerStatuses/0/state/terminated");

    // A pod bound past the scheduler to GPUs that are taken is refused, and never starts.
    bed.apply(sleeper("holds", 2, "")).await;
    bed.until("Running", async || bed.phase("holds").await == "Running").await;
    bed.apply(sleeper("too-many", 1, "")).await;
    bed.until("refused", async || bed.phase("too-many").await == "Failed").await;
    let refused = bed.get("pod", "too-many").await;
    assert_eq!(status(&refused, "/reason"), "OutOfnvidia.com/gpu");
    assert!(status(&refused, "/containerStatuses").is_null());

    // A pod deaf to SIGTERM is killed when its grace is over, not before.
    bed.nodes.fault("default", "holds", Fault::Deaf).await.unwrap();
    let ends = bed.last_state("holds").await;
    let began = Instant::now();
    bed.kubectl(["delete", "pod", "holds"]).await;
    let took = began.elapsed();
    assert!(took >= Duration::from_secs(3) && took < Duration::from_secs(6), "{took:?}");
    assert_eq!(ends.await.unwrap()["terminated"]["exitCode"], 137);

    // Faults by annotation and by command.
    bed.apply(sleeper("oom", 1, "oom")).await;
    bed.apply(sleeper("fails", 1, "fail:3")).await;
    bed.until("both Failed", async || {
        bed.phase("oom").await == "Failed" && bed.phase("fails").await == "Failed"
    })
    .await;
    let (oom, fails) = (end("oom").await, end("fails").await);
    assert_eq!((&oom["reason"], &oom["exitCode"]), (&json!("OOMKilled"), &json!(137)));
    assert_eq!(
        (&fails["reason"], &fails["exitCode"], &fails["message"]),
        (&json!("Error"), &json!(3), &json!("last words\n"))
    );

    // A GPU that fails takes its pod along and is not allocatable.
    bed.apply(sleeper("on-gpu-0", 1, "")).await;
    bed.until("Running", async || bed.phase("on-gpu-0").await == "Running").await;
    bed.nodes.gpu_fault("n-0", "0").await.unwrap();
    bed.until("Failed", async || bed.phase("on-gpu-0").await == "Failed").await;
    assert!(end("on-gpu-0").await["message"].as_str().unwrap().contains("CUDA error"));
    bed.until("one GPU left", async || {
        status(&bed.get("node", "n-0").await, "/allocatable/nvidia.com~1gpu") == json!("1")
    })
    .await;

    // A kubelet told to refuse does, once.
    let why = Refusal { reason: "UnexpectedAdmissionError".into(), message: "Allocate failed".into() };
    bed.nodes.refuse("n-0", 1, why).await.unwrap();
    bed.apply(sleeper("refused", 1, "")).await;
    bed.until("Failed", async || bed.phase("refused").await == "Failed").await;
    assert_eq!(status(&bed.get("pod", "refused").await, "/reason"), "UnexpectedAdmissionError");

    // Eviction by the kubelet.
    bed.apply(sleeper("evicted", 1, "")).await;
    bed.until("Running", async || bed.phase("evicted").await == "Running").await;
    let why = Refusal { reason: "Evicted".into(), message: "The node was low on resource: memory.".into() };
    bed.nodes.evict("default", "evicted", why, Duration::from_secs(1)).await.unwrap();
    bed.until("Failed", async || bed.phase("evicted").await == "Failed").await;
    let evicted = bed.get("pod", "evicted").await;
    assert_eq!(status(&evicted, "/reason"), "Evicted");
    assert!(bed.has_condition(&evicted, "DisruptionTarget", "TerminationByKubelet"));

    // And a forced deletion leaves the process its (shortest) grace and then no trace.
    bed.apply(sleeper("forced", 1, "")).await;
    bed.until("Running", async || bed.phase("forced").await == "Running").await;
    bed.kubectl(["delete", "pod", "forced", "--force", "--grace-period=0"]).await;
    bed.until("GPUs free", async || {
        bed.nodes.nodes().await.unwrap().iter().flat_map(|node| &node.gpus).all(|gpu| gpu.holder.is_none())
    })
    .await;
    bed.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_silent_node_goes_on_and_obeys_when_it_is_back_and_a_reboot_loses_all() {
    let bed =
        Bed::start("nodes: [{namePrefix: n-, count: 2, gpu: Tesla-T4, gpus: 2, gpuMemoryMiB: 15360}]").await;
    let sleeper = |name: &str, node: &str| {
        let container = json!({"name": "c", "image": "busybox", "command": ["/bin/sh", "-c", "trap 'exit 0' TERM; sleep 1000 & wait"]});
        let tolerate = json!([{"operator": "Exists"}]);
        pod(name, json!({"nodeName": node, "containers": [container], "tolerations": tolerate}))
    };
    bed.apply(sleeper("a", "n-0")).await;
    bed.apply(sleeper("b", "n-1")).await;
    bed.until("Running", async || bed.phase("a").await == "Running" && bed.phase("b").await == "Running")
        .await;

    // when a node falls silent, then it becomes Unknown while its container goes on
    bed.nodes.silence("n-0").await.unwrap();
    bed.until("n-0 Unknown", async || bed.ready("n-0").await == "Unknown").await;
    assert_eq!(bed.ready("n-1").await, "True");
    assert_eq!(bed.nodes.pods().await.unwrap().iter().filter(|pod| !pod.pids.is_empty()).count(), 2);
    // and it does not hear of a deletion
    bed.kubectl(["delete", "pod", "a", "--wait=false"]).await;
    bed.stays("a is there", async || !bed.get("pod", "a").await.is_null()).await;
    // when it is back, then it obeys, and is Ready again
    bed.nodes.back("n-0").await.unwrap();
    bed.until("a is gone", async || bed.get("pod", "a").await.is_null()).await;
    bed.until("n-0 Ready", async || bed.ready("n-0").await == "True").await;

    // when the kubelets themselves are killed, then containers die with them, and that is what they find afterwards
    bed.apply(sleeper("c", "n-0")).await;
    bed.until("Running", async || bed.phase("c").await == "Running").await;
    let pid = bed.nodes.pods().await.unwrap().into_iter().find(|pod| pod.name == "c").unwrap().pids["c"];
    bed.testbed().kill(Component::Kubelets).unwrap();
    let state = async || std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or(") Z".into());
    bed.until("the process is dead", async || state().await.contains(") Z")).await;
    bed.testbed().restart(Component::Kubelets).await.unwrap();
    bed.until("c and b Failed", async || {
        bed.phase("c").await == "Failed" && bed.phase("b").await == "Failed"
    })
    .await;
    let end = status(&bed.get("pod", "c").await, "/containerStatuses/0/state/terminated");
    assert_eq!(end["reason"], "ContainerStatusUnknown");
    bed.kubectl(["delete", "pod", "b", "c"]).await;
    bed.apply(sleeper("b", "n-1")).await;
    bed.until("Running", async || bed.phase("b").await == "Running").await;

    // when the other reboots, then its container is lost and its boot ID another
    let boot_id = async || status(&bed.get("node", "n-1").await, "/nodeInfo/bootID");
    let before = boot_id().await;
    bed.nodes.reboot("n-1", Duration::from_millis(500)).await.unwrap();
    bed.until("b Failed", async || bed.phase("b").await == "Failed").await;
    let end = status(&bed.get("pod", "b").await, "/containerStatuses/0/state/terminated");
    assert_eq!((&end["exitCode"], &end["reason"]), (&json!(255), &json!("Unknown")));
    bed.until("another boot ID", async || boot_id().await != before).await;

    // when a node is deleted with its machine, then it is gone, and comes back as a new one
    let uid = async || bed.get("node", "n-0").await["metadata"]["uid"].clone();
    let before = uid().await;
    bed.nodes.delete_node("n-0").await.unwrap();
    assert!(bed.get("node", "n-0").await.is_null());
    bed.nodes.restore_node("n-0").await.unwrap();
    bed.until("n-0 Ready", async || bed.ready("n-0").await == "True").await;
    assert_ne!(uid().await, before);
    bed.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn readiness_hooks_init_containers_and_sidecars() {
    let bed = Bed::start("nodes: [{namePrefix: n-, count: 1}]").await;
    // given a Service that forwards to a pod which serves when its probes pass
    bed.apply(json!({
        "apiVersion": "v1", "kind": "Service", "metadata": {"name": "web"},
        "spec": {"selector": {"app": "web"}, "ports": [{"port": 80, "targetPort": 8080}]},
    }))
    .await;
    let serve = "import http.server as h, socket, signal, sys; signal.signal(signal.SIGTERM, lambda *a: sys.exit(0)); \
                 ip = socket.gethostbyname(socket.gethostname()); h.HTTPServer((ip, 8080), h.SimpleHTTPRequestHandler).serve_forever()";
    let mut web = pod(
        "web",
        json!({
            "terminationGracePeriodSeconds": 10,
            "volumes": [{"name": "shared", "emptyDir": {}}],
            "initContainers": [
                {"name": "fetch", "image": "busybox", "command": ["/bin/sh", "-c", "echo fetched > /shared/page"],
                 "volumeMounts": [{"name": "shared", "mountPath": "/shared"}]},
                {"name": "side", "image": "busybox", "restartPolicy": "Always",
                 "command": ["/bin/sh", "-c", "trap 'echo side leaves; exit 0' TERM; sleep 1000 & wait"]},
            ],
            "containers": [{
                "name": "web", "image": "busybox", "workingDir": "/shared", "command": ["python3", "-c", serve],
                "volumeMounts": [{"name": "shared", "mountPath": "/shared"}],
                "startupProbe": {"exec": {"command": ["test", "-e", "/shared/page"]}, "periodSeconds": 1},
                "readinessProbe": {"httpGet": {"port": 8080, "path": "/ready"}, "periodSeconds": 1, "failureThreshold": 1},
                "lifecycle": {"preStop": {"exec": {"command": ["/bin/sh", "-c", "echo hook > /shared/hook; sleep 1"]}}},
            }],
        }),
    );
    web["metadata"]["labels"] = json!({"app": "web"});
    bed.apply(web).await;

    // then it runs and is not ready until it says so
    bed.until("Running", async || bed.phase("web").await == "Running").await;
    let ready = async || status(&bed.get("pod", "web").await, "/containerStatuses/0/ready") == json!(true);
    bed.stays("not ready", async || !ready().await).await;
    let uid = bed.get("pod", "web").await["metadata"]["uid"].as_str().unwrap().to_owned();
    let shared = bed.data(&format!("kubelets/pods/{uid}/volumes/shared"));
    assert_eq!(std::fs::read_to_string(shared.join("page")).unwrap(), "fetched\n");
    std::fs::write(shared.join("ready"), "").unwrap();
    bed.until("ready", ready).await;

    // and another pod reaches it through the Service's name
    let get = "until curl -sf -m 2 http://web.default.svc/page; do sleep 0.2; done";
    bed.apply(pod(
        "client",
        json!({"containers": [{"name": "c", "image": "busybox", "command": ["/bin/sh", "-c", get]}]}),
    ))
    .await;
    bed.until("client Succeeded", async || bed.phase("client").await == "Succeeded").await;
    assert_eq!(bed.log("client", "c"), "fetched\n");

    // and a place on the machine through a forward, which may be moved at any time
    for answer in ["one", "two"] {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let to = listener.local_addr().unwrap();
        let text = format!("HTTP/1.0 200 OK\r\nContent-Length: {}\r\n\r\n{answer}", answer.len());
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                let mut stream = stream.unwrap();
                let _ = std::io::Read::read(&mut stream, &mut [0; 1024]);
                let _ = std::io::Write::write_all(&mut stream, text.as_bytes());
            }
        });
        let listen = "10.96.0.53:443".parse().unwrap();
        bed.nodes.forward(Forward { listen, to, names: vec!["operator.system.svc".into()] }).await.unwrap();
        let get = "until curl -sf -m 2 http://operator.system.svc:443; do sleep 0.2; done";
        let container = json!({"name": "c", "image": "busybox", "command": ["/bin/sh", "-c", get]});
        bed.apply(pod(answer, json!({"containers": [container]}))).await;
        bed.until("Succeeded", async || bed.phase(answer).await == "Succeeded").await;
        assert_eq!(bed.log(answer, "c"), answer);
    }

    // and a pod whose managedFields are nested beyond what decoders stand stops nothing
    let mut deep = json!({});
    for _ in 0..200 {
        deep = json!({"f:a": deep});
    }
    let poison = json!({"metadata": {"managedFields": [{
        "manager": "m", "operation": "Update", "apiVersion": "v1", "time": "2030-01-01T00:00:00Z",
        "fieldsType": "FieldsV1", "fieldsV1": deep,
    }]}});
    bed.kubectl(["patch", "pod", "web", "--type=merge", "-p", &poison.to_string()]).await;
    bed.apply(pod(
        "after",
        json!({"containers": [{"name": "c", "image": "busybox", "command": ["/bin/true"]}]}),
    ))
    .await;
    bed.until("after Succeeded", async || bed.phase("after").await == "Succeeded").await;

    // when it is deleted, then its hook runs, it ends, then its sidecar
    let began = Instant::now();
    bed.kubectl(["delete", "pod", "web"]).await;
    let took = began.elapsed();
    assert!(took >= Duration::from_secs(1) && took < Duration::from_secs(7), "{took:?}");
    assert_eq!(bed.log("web", "side"), "side leaves\n");
    bed.stop().await;
}
