//! What a hostile or careless user sends, on the real API server: one object must not stop the others, and each bad
//! manifest gets one clear message.

use std::collections::BTreeMap;
use std::pin::pin;
use std::time::Duration;

use andreas_api::crd::{self, bounds};
use andreas_api::slim::{SlimPod, SlimTrainingJob};
use andreas_api::{TrainingJob, slim};
use andreas_e2e::api::{Verdict, causes, create, merge, yaml};
use andreas_e2e::chart;
use andreas_e2e::places;
use andreas_e2e::rules;
use andreas_testbed::Testbed;
use anyhow::{Context as _, Result, ensure};
use futures::{Stream, StreamExt as _};
use k8s_openapi::api::core::v1::Pod;
use kube::api::ListParams;
use kube::runtime::watcher::{self, Event};
use kube::{Api, Client, ResourceExt as _};
use serde_json::{Value, json};

async fn bed(name: &str) -> Testbed {
    let bed =
        Testbed::builder().name(name).without_scheduler().without_controller_manager().start().await.unwrap();
    chart::install(&bed, &[]).await.unwrap();
    // Nobody makes it without the controller manager.
    create(&bed.client(), &account("default"), false).await.unwrap().accepted().unwrap();
    bed
}

fn account(namespace: &str) -> Value {
    json!({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "default", "namespace": namespace}})
}

fn job(name: &str, change: &Value) -> Result<Value> {
    let mut job = rules::smallest("TrainingJob")?;
    merge(&mut job, &json!({"metadata": {"name": name, "namespace": "default"}}));
    merge(&mut job, change);
    Ok(job)
}

fn pod(name: &str) -> Value {
    json!({
        "apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "namespace": "default"},
        "spec": {"automountServiceAccountToken": false, "containers": [{"name": "c", "image": "example.org/c"}]},
    })
}

/// `levels` objects in one another.
fn nested(key: &str, levels: usize) -> Value {
    (0..levels).fold(json!({}), |inner, _| json!({ key: inner }))
}

/// The next object of a watch that has this name.
async fn sees<K: kube::Resource>(
    watch: &mut (impl Stream<Item = watcher::Result<Event<K>>> + Unpin),
    name: &str,
) -> Result<()> {
    let wait = async {
        while let Some(event) = watch.next().await {
            match event.context("the watch ends")? {
                Event::Apply(object) | Event::InitApply(object) if object.name_any() == name => return Ok(()),
                _ => {}
            }
        }
        anyhow::bail!("the watch ended")
    };
    tokio::time::timeout(Duration::from_secs(60), wait)
        .await
        .with_context(|| format!("{name} is not seen"))?
}

/// Given watches of slim objects, when a tenant patches 200 levels of `managedFields` onto its pod and its TrainingJob,
/// then lists and watches of full objects fail for everybody, and those of slim objects go on.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn deep_managed_fields_stop_full_decoding_but_not_slim_watches() {
    let _place = places::take(false).await.unwrap();
    let bed = bed("api-poison-deep").await;
    let client = bed.client();
    create(&client, &pod("poison"), false).await.unwrap().accepted().unwrap();
    create(&client, &job("poison", &json!({})).unwrap(), false).await.unwrap().accepted().unwrap();
    let mut pods = pin!(watcher::watcher(Api::<SlimPod>::all(client.clone()), watcher::Config::default()));
    let mut jobs =
        pin!(watcher::watcher(Api::<SlimTrainingJob>::all(client.clone()), watcher::Config::default()));
    sees(&mut pods, "poison").await.unwrap();
    sees(&mut jobs, "poison").await.unwrap();

    for (kind, version) in [("pod", "v1"), ("trainingjob", "andreas.dev/v1alpha1")] {
        let patch = json!({"metadata": {"managedFields": [{
            "manager": "hostile", "operation": "Update", "apiVersion": version, "time": "2026-01-01T00:00:00Z",
            "fieldsType": "FieldsV1", "fieldsV1": nested("f:a", 200)}]}});
        let file = bed.data_dir().join("poison.json");
        std::fs::write(&file, patch.to_string()).unwrap();
        let args = ["patch", kind, "poison", "--type=merge", "--patch-file", file.to_str().unwrap()];
        bed.kubectl(args).await.unwrap().checked().unwrap();
    }

    let all = ListParams::default();
    let words = "recursion limit exceeded";
    let full = Api::<Pod>::all(client.clone()).list(&all).await.unwrap_err();
    assert!(format!("{full:?}").contains(words), "{full:?}");
    let full = Api::<TrainingJob>::all(client.clone()).list(&all).await.unwrap_err();
    assert!(format!("{full:?}").contains(words), "{full:?}");

    // The watches that were there see the poisoned objects change and others come; new lists work.
    sees(&mut pods, "poison").await.unwrap();
    sees(&mut jobs, "poison").await.unwrap();
    create(&client, &pod("healthy"), false).await.unwrap().accepted().unwrap();
    create(&client, &job("healthy", &json!({})).unwrap(), false).await.unwrap().accepted().unwrap();
    sees(&mut pods, "healthy").await.unwrap();
    sees(&mut jobs, "healthy").await.unwrap();
    let names = |list: Vec<String>| list.join(" ");
    let slim = Api::<SlimPod>::all(client.clone()).list(&all).await.unwrap();
    assert_eq!(names(slim.iter().map(SlimPod::name_any).collect()), "healthy poison");
    let slim = Api::<SlimTrainingJob>::all(client.clone()).list(&all).await.unwrap();
    assert_eq!(names(slim.iter().map(SlimTrainingJob::name_any).collect()), "healthy poison");
    let slim = Api::<slim::AllocatedJob>::all(client).list(&all).await.unwrap();
    assert_eq!(slim.items.len(), 2);
    bed.stop().await;
}

/// Given the definitions, bad manifests get one clear message each, deep ones lose what is deep, and whatever is accepted
/// can be read.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn bad_manifests_get_one_message_and_whatever_is_accepted_can_be_read() {
    let _place = places::take(false).await.unwrap();
    let bed = bed("api-poison").await;
    one_clear_message_each(&bed.client()).await.unwrap();
    deep_nesting_is_pruned(&bed).await.unwrap();
    a_template_that_the_namespace_forbids_is_accepted_and_refused_as_a_pod(&bed).await.unwrap();
    accepted_edges_can_be_read(&bed.client()).await.unwrap();
    bed.stop().await;
}

async fn one_clear_message_each(client: &Client) -> Result<()> {
    let long = "x".repeat(10_240);
    let trainer = |more: Value| {
        let mut container = json!({"name": "trainer", "image": "example.org/trainer"});
        merge(&mut container, &more);
        json!({"spec": {"template": {"spec": {"containers": [container]}}}})
    };
    let gpu = json!({"resources": {"limits": {"nvidia.com/gpu": 4}}});
    for (what, change, words) in [
        (
            "min > max",
            json!({"spec": {"gpus": {"min": 8, "max": 4}}}),
            "gpus.min must not be greater than gpus.max",
        ),
        (
            "weight 0",
            json!({"spec": {"weight": 0}}),
            "spec.weight in body should be greater than or equal to 1",
        ),
        (
            "nodeName",
            json!({"spec": {"template": {"spec": {"nodeName": "gpu-1"}}}}),
            "nodeName is chosen by ANDREAS: use nodeSelector",
        ),
        (
            "a GPU count",
            trainer(gpu),
            "GPU counts are set by ANDREAS: remove nvidia.com/gpu and use spec.gpus",
        ),
        (
            "10 kB profile",
            json!({"spec": {"profileRef": {"name": long}}}),
            "spec.profileRef.name: Too long: may not be more than 253 bytes",
        ),
        (
            "10 kB container",
            json!({"spec": {"container": long}}),
            "spec.container: Too long: may not be more than 63 bytes",
        ),
        (
            "10 kB container's name",
            trainer(json!({"name": long})),
            "spec.template.spec.containers[0].name: Too long",
        ),
        (
            "10 kB claim",
            json!({"spec": {"checkpoint": {"claimName": long}}}),
            "spec.checkpoint.claimName: Too long",
        ),
        (
            "10 kB GPU type",
            json!({"spec": {"gpus": {"types": [long]}}}),
            "spec.gpus.types[0]: Too long: may not be more than 63 bytes",
        ),
        (
            "10 kB secret's name",
            json!({"spec": {"template": {"spec": {"imagePullSecrets": [{"name": long}]}}}}),
            "imagePullSecrets[0].name: Too long",
        ),
        ("10 kB name", json!({"metadata": {"name": long}}), "must be no more than 253"),
        (
            "a name that is no host name",
            json!({"metadata": {"name": "my.job"}}),
            "the name becomes host names",
        ),
    ] {
        let refusal = create(client, &job("bad", &change)?, true).await?.refused().context(what)?;
        let causes: Vec<String> = causes(&refusal)
            .into_iter()
            .filter(|cause| !cause.contains("some validation rules were not checked"))
            .collect();
        let short = |text: &String| text.chars().take(300).collect::<String>();
        let said: Vec<String> = causes.iter().map(short).collect();
        ensure!(causes.len() == 1, "{what}: {} messages: {said:#?}", causes.len());
        ensure!(causes[0].contains(words), "{what}: {}", said[0]);
        ensure!(refusal.code == 422, "{what}: {}", refusal.code);
    }
    Ok(())
}

async fn deep_nesting_is_pruned(bed: &Testbed) -> Result<()> {
    // Values as deep as this cannot be made or dropped by recursion: text.
    let deep = format!("{}1{}", r#"{"a":"#.repeat(9_000), "}".repeat(9_000));
    let manifest = format!(
        r#"{{"apiVersion": "andreas.dev/v1alpha1", "kind": "TrainingJob", "metadata": {{"name": "deep", "namespace": "default"}},
           "spec": {{"unknown": {deep}, "template": {{"metadata": {{"managedFields": [{{"fieldsV1": {deep}}}]}},
           "spec": {{"containers": [{{"name": "t", "image": "i", "unknown": {deep}}}]}}}}}}}}"#
    );
    let file = bed.data_dir().join("deep.json");
    std::fs::write(&file, manifest)?;
    let strict = bed.kubectl(["create", "-f", &file.display().to_string()]).await?;
    ensure!(!strict.success() && strict.stderr.contains("unknown field"), "strict: {}", strict.stderr);
    bed.kubectl(["create", "--validate=ignore", "-f", &file.display().to_string()]).await?.checked()?;
    let jobs = Api::<TrainingJob>::default_namespaced(bed.client());
    let read = jobs.get("deep").await.context("a full decode of what was pruned")?;
    ensure!(
        read.spec.template.metadata.as_ref().is_none_or(|m| m.managed_fields.is_none()),
        "managedFields came through"
    );
    Ok(())
}

/// The job waits; what the namespace forbids is said by a dry run of its pod, in the server's words.
async fn a_template_that_the_namespace_forbids_is_accepted_and_refused_as_a_pod(bed: &Testbed) -> Result<()> {
    let namespace = "{apiVersion: v1, kind: Namespace, metadata: {name: strict, labels: {pod-security.kubernetes.io/enforce: restricted}}}";
    create(&bed.client(), &yaml(namespace)?, false).await?.accepted()?;
    create(&bed.client(), &account("strict"), false).await?.accepted()?;
    let volumes = json!({"volumes": [{"name": "host", "hostPath": {"path": "/"}}]});
    let here = json!({"metadata": {"namespace": "strict"}});
    let mut wanted = job("host", &json!({"spec": {"template": {"spec": volumes}}}))?;
    merge(&mut wanted, &here);
    create(&bed.client(), &wanted, false).await?.accepted()?;

    let account = bed.kubeconfig_for_service_account("andreas-system", chart::operator_account()).await?;
    let operator = bed.client_for(&account).await?;
    let mut tried = pod("host");
    merge(&mut tried, &here);
    merge(&mut tried, &json!({"spec": volumes}));
    let refusal = create(&operator, &tried, true).await?.refused()?;
    ensure!(refusal.code == 403 && refusal.message.contains("violates PodSecurity"), "{}", refusal.message);
    ensure!(
        refusal
            .message
            .contains("restricted volume types (volume \"host\" uses restricted volume type \"hostPath\")"),
        "{}",
        refusal.message
    );
    Ok(())
}

/// A value at a path of the schema, as a patch: `spec.gpus.counts[]` becomes `{spec: {gpus: {counts: [value]}}}`.
fn at(path: &str, value: &Value) -> Value {
    path.rsplit('.').fold(value.clone(), |inner, step| {
        let name = step.trim_end_matches("[]").trim_end_matches("{}");
        let inner = if step.ends_with("[]") { json!([inner]) } else { inner };
        json!({ name: if step.ends_with("{}") { json!({"key": inner}) } else { inner } })
    })
}

/// Every field outside the template at the edges of what it may be: whatever the API server accepts, the types read.
async fn accepted_edges_can_be_read(client: &Client) -> Result<()> {
    let definitions = crd::all();
    let schema = definitions[0].spec.versions[0].schema.as_ref().and_then(|s| s.open_api_v3_schema.as_ref());
    let mut places = BTreeMap::new();
    bounds::walk(schema.context("a schema")?, "", &mut places);
    let instants = [
        "0001-01-01T00:00:00Z",
        "1000-01-01T00:00:00+23:59",
        "8999-12-31T23:59:59.999999999-23:59",
        "9999-12-31T23:59:59-23:59",
        "2027-01-01T00:00:00.123456789012Z",
        "2027-01-01T23:59:60Z",
        "2027-02-30T00:00:00Z",
        "2027-01-01t00:00:00z",
        "2027-01-01 00:00:00Z",
        "2027-01-01T00:00:00,5Z",
        "2027-01-01T00:00:00+24:00",
        "2027-01-01T00:00:00-00:00",
    ];
    let mut tried = Vec::new();
    for (path, place) in &places {
        if !path.starts_with("spec.") || path.starts_with("spec.template") {
            continue;
        }
        let values = match place.type_.as_deref() {
            Some("integer") => {
                json!([-1, 0, 1, 20, i32::MAX, i64::from(i32::MAX) + 1, i64::MAX, 1.5, 2.0, 1e300, "1", null])
            }
            Some("string") if place.format.is_some() => json!(instants),
            Some("string") => json!([
                "",
                "a",
                "1s",
                "9".repeat(29),
                "9999999h9999999h9999999h9999999h",
                "/\u{202e}\u{0}\u{ffff}",
                "\u{1f980}".repeat(63),
                null
            ]),
            Some("boolean") => json!([true, "true", 1, null]),
            _ => json!([null, [], {}, "", {"unknown": {}}]),
        };
        tried.extend(values.as_array().into_iter().flatten().map(|value| at(path, value)));
    }
    // Numbers in the template: the API server keeps 1.0 and 1e3 as they are written, the types read whole numbers.
    for number in
        ["1.0", "1e3", "1.5", "-1", "1e300", "2147483648", "9223372036854775807", "9223372036854775808"]
    {
        let number: Value = serde_json::from_str(number)?;
        for more in [
            json!({"ports": [{"containerPort": number}]}),
            json!({"livenessProbe": {"tcpSocket": {"port": number}}}),
            json!({"resources": {"requests": {"memory": number}}}),
            json!({"securityContext": {"runAsUser": number}}),
        ] {
            let mut container = json!({"name": "trainer", "image": "example.org/trainer"});
            merge(&mut container, &more);
            tried.push(json!({"spec": {"template": {"spec": {"containers": [container]}}}}));
        }
    }
    println!("{} manifests at the edges of the schema", tried.len());
    ensure!(tried.len() > 200, "only {} edges", tried.len());
    let answers = futures::stream::iter(tried).map(async |change| -> Result<bool> {
        match create(client, &job("edge", &change)?, true).await.with_context(|| change.to_string())? {
            Verdict::Refused(status) => {
                ensure!((400..500).contains(&status.code), "{change}: {} {}", status.code, status.message);
                Ok(false)
            }
            Verdict::Accepted(object) => {
                let text = serde_json::to_string(&object)?;
                serde_json::from_str::<SlimTrainingJob>(&text)
                    .with_context(|| format!("{change} was accepted: {text}"))?;
                Ok(true)
            }
        }
    });
    let answers: Vec<Result<bool>> = answers.buffer_unordered(4).collect().await;
    let answers = answers.into_iter().collect::<Result<Vec<bool>>>()?;
    let accepted = answers.iter().filter(|a| **a).count();
    ensure!(accepted > 50 && answers.len() - accepted > 100, "{accepted} of {} accepted", answers.len());
    Ok(())
}
