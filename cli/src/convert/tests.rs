//! Jobs of every kind and the TrainingJobs that they become.

use serde_json::json;

use super::*;

fn of(text: &str) -> Vec<Converted> {
    convert(text, None, &[]).unwrap_or_else(|error| panic!("{error}"))
}

fn text(text: &str) -> String {
    text_of(OutputArgs::default(), &of(text)).unwrap()
}

/// The API reads every field of the spec.
fn is_of_the_api(one: &Converted) {
    let read: andreas_api::TrainingJob = serde_json::from_value(one.job.clone()).unwrap();
    let written = serde_json::to_value(&read.spec).unwrap();
    fn kept(given: &Value, written: &Value, path: &str) {
        match given {
            Value::Object(fields) => {
                fields
                    .iter()
                    .for_each(|(name, value)| kept(value, &written[name], &format!("{path}.{name}")));
            }
            Value::Array(items) => {
                items
                    .iter()
                    .enumerate()
                    .for_each(|(n, item)| kept(item, &written[n], &format!("{path}[{n}]")));
            }
            Value::Bool(false) => {}
            // A quantity may be a number.
            Value::Number(number) if written.is_string() => {
                assert_eq!(written, &number.to_string(), "{path}")
            }
            _ => assert_eq!(given, written, "{path}"),
        }
    }
    kept(&one.job["spec"], &written, "spec");
}

const JOB: &str = "
apiVersion: batch/v1
kind: Job
metadata: {name: resnet, namespace: vision, labels: {team: vision, kueue.x-k8s.io/queue-name: q}}
spec:
  backoffLimit: 2
  activeDeadlineSeconds: 86400
  ttlSecondsAfterFinished: 600
  podFailurePolicy: {rules: []}
  template:
    spec:
      restartPolicy: OnFailure
      priorityClassName: high
      terminationGracePeriodSeconds: 120
      nodeSelector: {nvidia.com/gpu.product: NVIDIA-A100-SXM4-80GB, zone: a}
      containers:
        - name: proxy
          image: example.org/proxy
        - name: train
          image: example.org/train
          command: [python, train.py]
          resources: {limits: {nvidia.com/gpu: 4, memory: 16Gi}, requests: {cpu: 4}}
";

#[test]
fn a_job_keeps_its_template_and_loses_what_the_operator_sets() {
    insta::assert_snapshot!(text(JOB));
    is_of_the_api(&of(JOB)[0]);
}

const PYTORCH_JOB: &str = "
apiVersion: kubeflow.org/v1
kind: PyTorchJob
metadata: {name: bert}
spec:
  nprocPerNode: '8'
  elasticPolicy: {minReplicas: 1, maxReplicas: 4, rdzvBackend: c10d}
  runPolicy: {backoffLimit: 3, cleanPodPolicy: None}
  pytorchReplicaSpecs:
    Worker:
      replicas: 4
      restartPolicy: OnFailure
      template:
        spec:
          containers:
            - name: pytorch
              image: example.org/bert
              command: [torchrun, --nnodes=1:4, --nproc_per_node, '8', train.py]
              env: [{name: MASTER_PORT, value: '1234'}, {name: SEED, value: '1'}]
              resources: {limits: {nvidia.com/gpu: 8}}
";

#[test]
fn a_pytorch_job_becomes_a_gang_with_a_range() {
    insta::assert_snapshot!(text(PYTORCH_JOB));
    is_of_the_api(&of(PYTORCH_JOB)[0]);
    let env = PYTORCH_JOB.replace("[torchrun, --nnodes=1:4, --nproc_per_node, '8', train.py]", "[/start.sh]");
    assert_eq!(of(&env)[0].job["spec"]["rendezvous"], "Env");
}

#[test]
fn one_process_for_each_pod_is_lost_where_a_plan_may_use_one_node() {
    let template = "{spec: {containers: [{name: pytorch, image: i, command: [python, train.py], resources: {limits: {nvidia.com/gpu: 1}}}]}}";
    let pytorch = format!(
        "apiVersion: kubeflow.org/v1\nkind: PyTorchJob\nmetadata: {{name: a}}\nspec: {{pytorchReplicaSpecs: {{Master: {{replicas: 1, \
         template: {template}}}, Worker: {{replicas: 3, template: {template}}}}}}}"
    );
    let indexed = format!(
        "apiVersion: batch/v1\nkind: Job\nmetadata: {{name: a}}\nspec: {{parallelism: 4, completions: 4, completionMode: Indexed, \
         template: {template}}}"
    );
    let lost = |text: &str| -> Vec<String> {
        let one = of(text).remove(0);
        one.notes.into_iter().filter(|note| note.level == Level::Lost).map(|note| note.field).collect()
    };
    assert_eq!(of(&pytorch)[0].job["spec"]["gpus"], json!({"min": 4, "maxNodes": 4}));
    assert_eq!(lost(&pytorch), ["spec.pytorchReplicaSpecs.Master.template.spec.containers"]);
    assert_eq!(lost(&indexed), ["spec.template.spec.containers"]);
    for text in [&pytorch, &indexed] {
        assert!(lost(&text.replace("[python, train.py]", "[torchrun, train.py]")).is_empty());
    }
    assert!(lost(&indexed.replace(": 4", ": 1")).is_empty());
}

const TRAIN_JOB: &str = "
apiVersion: trainer.kubeflow.org/v1alpha1
kind: ClusterTrainingRuntime
metadata: {name: torch}
spec:
  mlPolicy: {numNodes: 1, torch: {numProcPerNode: auto}}
  template:
    spec:
      replicatedJobs:
        - name: node
          template:
            metadata: {labels: {trainer.kubeflow.org/trainjob-ancestor-step: trainer}}
            spec:
              template:
                spec:
                  containers: [{name: node, image: example.org/runtime, env: [{name: A, value: '1'}, {name: B, value: '1'}]}]
---
apiVersion: trainer.kubeflow.org/v1alpha1
kind: TrainJob
metadata: {name: llm}
spec:
  runtimeRef: {name: torch}
  trainer:
    numNodes: 2
    numProcPerNode: 4
    command: [torchrun, tune.py]
    env: [{name: B, value: '2'}]
    resourcesPerNode: {requests: {nvidia.com/gpu: 4, cpu: 8}}
";

#[test]
fn a_train_job_takes_from_its_runtime_what_it_leaves_to_it() {
    insta::assert_snapshot!(text(TRAIN_JOB));
    is_of_the_api(&of(TRAIN_JOB)[0]);
    let alone = TRAIN_JOB.split("---\n").nth(1).unwrap();
    let lost: Vec<String> = of(alone)[0].notes.iter().map(|note| note.field.clone()).collect();
    assert_eq!(lost[..2], ["spec.template.spec.containers[0].image", "spec.runtimeRef"]);
}

const JOB_SET: &str = "
apiVersion: jobset.x-k8s.io/v1alpha2
kind: JobSet
metadata: {name: set}
spec:
  failurePolicy: {maxRestarts: 5}
  network: {enableDNSHostnames: true}
  replicatedJobs:
    - name: driver
      template: {spec: {template: {spec: {containers: [{name: d, image: example.org/driver}]}}}}
    - name: workers
      replicas: 2
      template:
        spec:
          parallelism: 2
          completions: 2
          completionMode: Indexed
          backoffLimit: 0
          template:
            spec:
              containers:
                - {name: w, image: example.org/worker, resources: {limits: {nvidia.com/gpu: '8'}}}
";

#[test]
fn a_job_set_becomes_the_gang_of_its_jobs_with_gpus() {
    insta::assert_snapshot!(text(JOB_SET));
    is_of_the_api(&of(JOB_SET)[0]);
}

const RAY_JOB: &str = "
apiVersion: ray.io/v1
kind: RayJob
metadata: {name: tune}
spec:
  entrypoint: python tune.py --epochs 3
  shutdownAfterJobFinishes: true
  rayClusterSpec:
    rayVersion: '2.40.0'
    headGroupSpec:
      rayStartParams: {}
      template: {spec: {containers: [{name: head, image: example.org/ray}]}}
    workerGroupSpecs:
      - groupName: gpus
        replicas: 3
        minReplicas: 1
        maxReplicas: 5
        template:
          spec: {containers: [{name: worker, image: example.org/ray, resources: {limits: {nvidia.com/gpu: 1}}}]}
";

#[test]
fn a_ray_job_becomes_a_gang_whose_first_worker_is_the_head() {
    insta::assert_snapshot!(text(RAY_JOB));
    is_of_the_api(&of(RAY_JOB)[0]);
}

#[test]
fn several_documents_and_lists_are_read_and_other_objects_named() {
    let two = format!("{JOB}---\napiVersion: v1\nkind: Service\nmetadata: {{name: s}}\n---\n{JOB_SET}");
    let found = of(&two);
    assert_eq!(found.iter().map(Converted::name).collect::<Vec<_>>(), ["resnet", "set"]);
    assert!(found[0].notes.iter().any(|note| note.field == "Service s"), "{:?}", found[0].notes);
    let job: Value = serde_saphyr::from_str(JOB).unwrap();
    let list = json!({"apiVersion": "v1", "kind": "List", "items": [job, job]}).to_string();
    assert_eq!(of(&list).len(), 2);
}

#[test]
fn errors_name_the_document_and_the_field() {
    let error = |text: &str| convert(text, None, &[]).unwrap_err().to_string();
    let broken = JOB.replace("parallelism", "x").replace("backoffLimit: 2", "backoffLimit: many");
    assert_eq!(error(&broken), "document 1: Job resnet: spec.backoffLimit: is not a whole number");
    assert!(error("kind: Job\napiVersion: batch/v1\n").contains("spec.template: is missing"));
    assert!(error("kind: CronJob\napiVersion: batch/v1\nmetadata: {name: c}").contains("but CronJob c"));
    assert!(error("kind: Job\nmetadata: {name: a}").ends_with("but Job a without apiVersion"));
    let volcano = "kind: Job\napiVersion: batch.volcano.sh/v1alpha1\nmetadata: {name: a}";
    assert!(error(volcano).ends_with("but Job a of batch.volcano.sh/v1alpha1"), "{}", error(volcano));
    assert!(error("[").starts_with("cannot be read as YAML: line 1"), "{}", error("["));
    assert!(error("").starts_with("holds no Job"));
    let twice = error("kind: Job\nkind: Job\n");
    assert!(twice.contains("line 2 column 1: the key kind is there twice"), "{twice}");
    let many = error(&format!("a: [{}1]", "1,".repeat(300_000)));
    assert!(many.contains("it has more values than are read"), "{many}");
}

#[test]
fn jobs_of_a_file_do_not_write_over_one_another() {
    let seed = |number: u32| {
        let name = format!("name: llama-sweep-experiment-on-the-big-cluster-with-long-name-seed-{number}");
        JOB.replace("name: resnet", &name)
    };
    let sweep = of(&format!("{}---\n{}", seed(1), seed(2)));
    assert_ne!(sweep[0].name(), sweep[1].name());
    assert!(sweep.iter().all(|one| one.name().len() <= 48 && one.name().starts_with("llama-sweep-")));
    assert_eq!(of(&seed(1))[0].name(), sweep[0].name(), "the same each time");
    let twice = of(&format!("{JOB}---\n{JOB}"));
    assert!(twice[0].notes.iter().all(|note| note.field != "metadata.name"));
    let note = &twice[1].notes[0];
    assert_eq!((note.level, note.field.as_str()), (Level::Lost, "metadata.name"));
}

#[test]
fn a_job_that_is_held_by_its_number_of_pods_is_suspended() {
    let held = of(&JOB.replace("  backoffLimit: 2\n", "  parallelism: 0\n"));
    assert_eq!(held[0].job["spec"]["suspend"], true);
    assert!(held[0].notes.iter().any(|note| note.field == "spec.parallelism"), "{:?}", held[0].notes);
}

#[test]
fn an_image_that_no_file_names_can_be_given() {
    let script = "#!/bin/bash\n#SBATCH --gpus=1\npython train.py\n";
    let given = convert(script, Some("example.org/i"), &[]).unwrap();
    assert_eq!(given[0].job["spec"]["template"]["spec"]["containers"][0]["image"], "example.org/i");
    assert!(given[0].notes.iter().all(|note| note.level == Level::Changed), "{:?}", given[0].notes);
    assert!(of(script)[0].notes[0].field.ends_with(".image"));
    is_of_the_api(&given[0]);
}

#[test]
fn no_line_that_is_missing_or_odd_makes_it_panic() {
    let script = "#!/bin/bash\n#SBATCH -N 2 --gres=gpu:a100:8\n#SBATCH -t 1-0 -c 8\nexport A=1\nsrun torchrun x.py \\\n  -y\n";
    for text in [JOB, PYTORCH_JOB, TRAIN_JOB, JOB_SET, RAY_JOB, script] {
        let lines: Vec<&str> = text.lines().collect();
        for at in 0..lines.len() {
            let key = lines[at].split(':').next().unwrap_or_default();
            for odd in ["", "null", "-9223372036854775808", "[[]]", "{a: {}}", "'\u{1F600}é'", "1e400", "~"]
            {
                let line = if odd.is_empty() { String::new() } else { format!("{key}: {odd}") };
                let changed: Vec<&str> = lines
                    .iter()
                    .enumerate()
                    .map(|(n, old)| if n == at { line.as_str() } else { old })
                    .collect();
                for one in convert(&changed.join("\n"), Some("i"), &[]).unwrap_or_default() {
                    assert_eq!(one.job["kind"], "TrainingJob");
                    let written = document(&one).unwrap();
                    let read: Value = serde_saphyr::from_str(&written).unwrap();
                    assert_eq!(read, one.job, "{written}");
                }
            }
        }
    }
}

fn made(text: &str) -> (Value, String) {
    let one = of(text).remove(0);
    is_of_the_api(&one);
    let notes: Vec<String> = one.notes.iter().map(|note| format!("{}: {}", note.field, note.text)).collect();
    (one.job["spec"].clone(), notes.join("\n"))
}

#[test]
fn the_resources_of_a_pod_follow_its_gpus_where_a_plan_may_put_several_pods_into_one_worker() {
    let (spec, notes) = made(
        "
apiVersion: batch/v1
kind: Job
metadata: {name: gang}
spec:
  parallelism: 4
  completionMode: Indexed
  template:
    spec:
      containers:
        - name: train
          image: i
          resources: {limits: {nvidia.com/gpu: 2, cpu: 8, memory: 32Gi}}
",
    );
    assert_eq!(spec["resourcesPer"], "Gpu");
    let limits = &spec["template"]["spec"]["containers"][0]["resources"]["limits"];
    assert_eq!(limits, &json!({"cpu": "4", "memory": "16Gi"}));
    assert!(notes.contains("divided by its 2 GPUs"), "{notes}");
    // One pod stays one worker.
    let (spec, _) = made(JOB);
    assert!(spec["resourcesPer"].is_null());
}

#[test]
fn modes_of_files_are_octal_as_for_kubectl() {
    let (spec, _) = made(
        "
apiVersion: batch/v1
kind: Job
metadata: {name: keys}
spec:
  template:
    spec:
      volumes: [{name: k, secret: {secretName: k, defaultMode: 0400}}]
      containers: [{name: train, image: i, resources: {limits: {nvidia.com/gpu: 1}}}]
",
    );
    assert_eq!(spec["template"]["spec"]["volumes"][0]["secret"]["defaultMode"], 256);
}

#[test]
fn a_job_that_kueue_would_start_is_not_suspended_and_its_keys_are_named() {
    let (spec, notes) = made(
        "
apiVersion: batch/v1
kind: Job
metadata:
  name: queued
  labels:
    kueue.x-k8s.io/queue-name: q
    kueue.x-k8s.io/priority-class: high
    kueue.x-k8s.io/max-exec-time-seconds: '3600'
spec:
  suspend: true
  template:
    metadata: {annotations: {kueue.x-k8s.io/podset-required-topology: rack}}
    spec:
      containers: [{name: train, image: i, resources: {limits: {nvidia.com/gpu: 1}}}]
",
    );
    assert!(spec["suspend"].is_null() && spec["maxRunTime"] == "1h", "{spec}");
    for key in ["queue-name", "priority-class", "podset-required-topology"] {
        assert!(notes.contains(&format!("kueue.x-k8s.io/{key}: Kueue does not manage")), "{notes}");
    }
    assert!(spec["template"]["metadata"].is_null(), "{spec}");
}

#[test]
fn hosts_of_a_ray_group_are_counted_and_jobs_of_a_set_with_the_same_pods_are_one_gang() {
    let (spec, notes) = made(
        "
apiVersion: ray.io/v1
kind: RayJob
metadata: {name: hosts}
spec:
  entrypoint: python train.py
  rayClusterSpec:
    headGroupSpec: {rayStartParams: {}, template: {spec: {containers: [{name: head, image: i}]}}}
    workerGroupSpecs:
      - groupName: w
        replicas: 1
        minReplicas: 1
        maxReplicas: 1
        numOfHosts: 4
        rayStartParams: {object-store-memory: '1000'}
        template: {spec: {containers: [{name: w, image: i, resources: {limits: {nvidia.com/gpu: 8}}}]}}
",
    );
    assert_eq!((&spec["gpus"]["min"], &spec["retries"]), (&json!(32), &json!(0)));
    assert!(notes.contains("ray starts without object-store-memory"), "{notes}");

    let job = |name: &str, pods: u8| {
        format!(
            "
    - name: {name}
      template:
        spec:
          parallelism: {pods}
          completionMode: Indexed
          backoffLimit: 0
          template: {{spec: {{containers: [{{name: w, image: i, resources: {{limits: {{nvidia.com/gpu: 8}}}}}}]}}}}"
        )
    };
    let set = format!(
        "
apiVersion: jobset.x-k8s.io/v1alpha2
kind: JobSet
metadata: {{name: set}}
spec:
  replicatedJobs:{}{}
",
        job("leader", 1),
        job("workers", 3)
    );
    let (spec, notes) = made(&set);
    assert_eq!((&spec["gpus"]["min"], &spec["retries"]), (&json!(32), &json!(0)));
    assert!(!notes.contains("pods are not made"), "{notes}");
}

#[test]
fn a_pytorch_job_that_is_never_restarted_has_no_retries() {
    let job = |policy: &str| {
        format!(
            "
apiVersion: kubeflow.org/v1
kind: PyTorchJob
metadata: {{name: once}}
spec:
  pytorchReplicaSpecs:
    Master:
      restartPolicy: {policy}
      template: {{spec: {{containers: [{{name: pytorch, image: i, resources: {{limits: {{nvidia.com/gpu: 1}}}}}}]}}}}
"
        )
    };
    let (spec, notes) = made(&job("Never"));
    assert!(spec["retries"] == 0 && notes.contains("not started again"), "{spec} {notes}");
    assert!(made(&job("OnFailure")).0["retries"].is_null());
    // The limit of an elastic policy is one.
    let elastic = job("Never").replace("spec:\n", "spec:\n  elasticPolicy: {maxRestarts: 5}\n");
    let (spec, notes) = made(&elastic);
    assert!(spec["retries"] == 5 && !notes.contains("not started again"), "{spec} {notes}");
}
