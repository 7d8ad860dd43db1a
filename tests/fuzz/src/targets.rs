//! What each target does with its bytes.

use std::io::Write as _;
use std::path::Path;

use andreas_api::quantity;
use andreas_api::query::{CanRequest, WhatIfRequest};
use andreas_api::slim::{
    SlimGpuNode, SlimNode, SlimPersistentVolume, SlimPersistentVolumeClaim, SlimPod, SlimQuota, SlimService,
    SlimTrainingJob,
};
use andreas_api::{EnergyPolicy, TrainingProfile};
use andreas_cli::jobs::{Line, log_lines, printable};
use andreas_cluster::index::amounts;
use andreas_cluster::index::foreign::{ForeignPod, SlimNamespace};
use andreas_extender::wire::{ExtenderArgs, ExtenderBindingArgs};
use andreas_node_agent::podresources::messages::ListPodResourcesResponse;
use andreas_node_agent::setter::record::Record;
use andreas_node_agent::setting::{SettingsRequest, SettingsResponse};
use andreas_operator::progress::wire::ReportBody;
use andreas_predictor::estimates::{MAX_DESCRIPTION, RunDescription};
use andreas_runtime::access::bearer;
use andreas_runtime::certificates::{self, Authority, AuthorityPem};
use andreas_runtime::tls::{Tls, TlsPem};
use andreas_runtime::watch::check_line;
use andreas_runtime::watch::list_splitter::{Lines, ListItem, ListSplitter};
use andreas_workloads::adopt::{Directives, Kind, Workload};
use futures::StreamExt as _;
use jiff::Timestamp;
use prost::Message as _;
use serde::de::DeserializeOwned;
use serde_json::Value;

/// Whatever was read can be written.
fn json<T: DeserializeOwned + serde::Serialize>(bytes: &[u8]) -> Option<T> {
    let value: T = serde_json::from_slice(bytes).ok()?;
    serde_json::to_vec(&value).expect("what was read can be written");
    Some(value)
}

/// Jobs of other kinds, as they are adopted, released, held and given back: none of it panics, and a mirror has GPUs.
pub fn adopted_workloads(bytes: &[u8]) {
    let Ok(object) = serde_json::from_slice::<Value>(bytes) else { return };
    for kind in Kind::ALL {
        let Some(workload) = Workload::from_object(kind, &object) else { continue };
        let _ = (
            workload.wants_adoption(),
            workload.attempt(),
            workload.controller(),
            andreas_workloads::adopt::name(&workload),
        );
        if let Ok(job) = andreas_workloads::adopt::mirror(&workload, &object, &object) {
            assert!(job["spec"]["gpus"]["min"].as_i64().is_some_and(|gpus| gpus > 0), "{job}");
        }
        let groups = andreas_workloads::adopt::groups(kind.template_kind(), &object);
        for (hostname, pods) in [(Some("node-1".to_owned()), None), (None, Some(3))] {
            let (job, uid) = ("job".to_owned(), "uid".to_owned());
            let mut changed = object.clone();
            andreas_workloads::adopt::write_directives(
                &mut changed,
                &groups,
                &Directives { job, uid, attempt: 1, hostname, pods },
            );
            andreas_workloads::adopt::release(kind, &mut changed, 1);
            andreas_workloads::adopt::hold(kind, &mut changed);
            andreas_workloads::adopt::restore(&mut changed);
        }
        andreas_workloads::adopt::restore(&mut object.clone());
    }
}

/// Objects of the API server, as the watches of operator and extender read them.
pub fn api_objects(bytes: &[u8]) {
    if let Ok(job) = serde_json::from_slice::<SlimTrainingJob>(bytes) {
        let gpus = &job.spec.gpus;
        if gpus.max.is_none_or(|max| max <= 4096) {
            let _ = gpus.totals();
        }
        let _ = job.spec.deadline_after.as_ref().map(|d| d.seconds());
        let _ = job.spec.start_timeout.seconds_or(900);
    }
    if let Ok(pod) = serde_json::from_slice::<SlimPod>(bytes) {
        let _ = amounts::pod(&pod.spec);
    }
    if let Ok(node) = serde_json::from_slice::<SlimNode>(bytes) {
        let _ = amounts::Amounts::from_resources(&node.status.allocatable);
    }
    let _ = serde_json::from_slice::<SlimGpuNode>(bytes);
    let _ = serde_json::from_slice::<SlimQuota>(bytes);
    let _ = serde_json::from_slice::<SlimService>(bytes);
    let _ = serde_json::from_slice::<SlimPersistentVolume>(bytes);
    let _ = serde_json::from_slice::<SlimPersistentVolumeClaim>(bytes);
    let _ = serde_json::from_slice::<ForeignPod>(bytes);
    let _ = serde_json::from_slice::<SlimNamespace>(bytes);
    let _ = json::<TrainingProfile>(bytes);
    let _ = json::<EnergyPolicy>(bytes);
}

/// Certificates and keys of a server.
pub fn certificates(bytes: &[u8]) {
    let [certificate, key, _] = parts(bytes).map(<[u8]>::to_vec);
    let _ = Tls::from_pem(TlsPem { certificate, key });
}

/// Certificates and authorities in Secrets, which the programs renew or hand on.
pub fn certificate_secrets(bytes: &[u8]) {
    let texts = parts(bytes).map(String::from_utf8_lossy);
    let [certificates, key, bundle] = &texts;
    let now = Timestamp::UNIX_EPOCH;
    let usable = certificates::usable(certificates, key).is_ok();
    assert!(!usable || certificates::validity(certificates).is_some(), "a chain that can be used has an end");
    let _ = certificates::verifies(certificates, bundle, "operator", now);
    let _ = certificates::bundle(bundle, now);
    let pem = AuthorityPem { certificate: certificates.to_string(), key: key.to_string() };
    if let Ok(authority) = Authority::read(&pem) {
        Authority::read(&authority.pem()).expect("what was read can be written and read again");
    }
}

/// Three parts that a zero byte separates, so that one input holds all of them; the whole for one that is missing.
fn parts(bytes: &[u8]) -> [&[u8]; 3] {
    let mut parts = bytes.split(|byte| *byte == 0);
    [(); 3].map(|()| parts.next().unwrap_or(bytes))
}

/// Manifests and sbatch scripts that become TrainingJobs: each has a spec, and can be written and read again.
pub fn job_manifests(bytes: &[u8]) {
    let Ok(text) = std::str::from_utf8(bytes) else { return };
    for one in andreas_workloads::convert::convert(text, Some("image"), &[]).unwrap_or_default() {
        assert!(one.job["kind"] == "TrainingJob", "{}", one.source);
        serde_json::to_vec(&one.job).expect("what was converted can be written");
    }
}

/// Answers of the kubelet's PodResources API.
pub fn kubelet_pod_resources(bytes: &[u8]) {
    let _ = ListPodResourcesResponse::decode(bytes);
}

/// A list, as the watches split it while it arrives: where it is cut changes nothing, and no byte is lost.
pub fn list_answers(bytes: &[u8]) {
    let split = |chunk: usize| {
        let (mut splitter, mut objects) = (ListSplitter::default(), Vec::new());
        for part in bytes.chunks(chunk) {
            splitter.feed(part, |item| {
                if let ListItem::Object(object) = item {
                    objects.push(object.to_vec());
                }
            })?;
        }
        splitter.end().map(|envelope| (envelope, objects))
    };
    let whole = split(bytes.len().max(1));
    assert_eq!(whole, split(1), "byte by byte");
    let Ok((_, objects)) = whole else { return };
    let list: Option<Value> = serde_json::from_slice(bytes).ok();
    let Some(items) = list.as_ref().and_then(|list| list.get("items")?.as_array()) else { return };
    let read: Vec<Value> = objects.iter().filter_map(|object| serde_json::from_slice(object).ok()).collect();
    let objects = items.iter().filter(|item| item.is_object());
    assert!(objects.eq(&read), "{read:?}");
}

/// What the programs of a job print, on its way to a terminal: no line is long, and nothing but colours reaches the terminal.
pub fn pod_logs(bytes: &[u8]) {
    let lines = log_lines(0, futures::io::Cursor::new(bytes)).collect::<Vec<_>>();
    for line in futures::executor::block_on(lines) {
        let Line::Text { text, .. } = line else { continue };
        assert!(text.len() <= 64 << 10);
        let shown = printable(&text);
        assert!(shown.chars().all(|c| matches!(c, '\t' | '\r' | '\u{1b}') || !c.is_control()), "{shown:?}");
    }
}

/// Exported profiles: what was read has a name, and can be written.
pub fn profiles(bytes: &[u8]) {
    let Ok(text) = std::str::from_utf8(bytes) else { return };
    if let Ok(profile) = andreas_cli::profile::parse(text, "profile") {
        assert!(profile.metadata.name.is_some());
        serde_json::to_vec(&profile).expect("what was read can be written");
    }
}

/// Bodies and Authorization headers that training programs send.
pub fn progress_reports(bytes: &[u8]) {
    if let Some(body) = json::<ReportBody>(bytes)
        && let Some(status) = body.trainer_status
    {
        for epochs in [1, 90, i32::MAX] {
            if let Some(claim) = status.reported_progress(epochs) {
                assert!((0..=100_000).contains(&claim.milli_percent), "{claim:?}");
            }
        }
    }
    if let Ok(value) = http::HeaderValue::from_bytes(bytes) {
        let _ = bearer(&value);
    }
}

/// Quantities of Kubernetes (`1500m`, `2Gi`, `1e3`).
pub fn quantities(bytes: &[u8]) {
    if let Ok(text) = std::str::from_utf8(bytes) {
        let _ = (quantity::milli(text), quantity::part(text, 3));
    }
}

/// Bodies of kube-scheduler's requests.
pub fn scheduler_requests(bytes: &[u8]) {
    let _ = json::<ExtenderArgs>(bytes).map(|asked| asked.names().len());
    let _ = json::<ExtenderBindingArgs>(bytes);
}

/// Bodies of questions to the operator.
pub fn queries(bytes: &[u8]) {
    let _ = json::<WhatIfRequest>(bytes).map(|asked| asked.is_empty());
    let _ = json::<CanRequest>(bytes);
}

/// What runs of one program have in common: the name is that of an object, the description is short.
pub fn program_descriptions(bytes: &[u8]) {
    let Ok(text) = std::str::from_utf8(bytes) else { return };
    let mut words = text.split('\n');
    let (name, image) = (words.next().unwrap_or_default(), words.next().unwrap_or_default());
    let (environment, command): (Vec<&str>, Vec<&str>) = words.partition(|word| word.starts_with("env "));
    let environment = environment.iter().filter_map(|word| word.split_once('=')).collect();
    let run = RunDescription { name, owner: Some(("ReplicaSet", name)), image, command, environment };
    let program = run.program();
    assert!(program.description.len() <= MAX_DESCRIPTION, "{program:?}");
    let allowed = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || b"-.".contains(&byte);
    assert!(program.profile.len() <= 63 && program.profile.bytes().all(allowed), "{program:?}");
}

/// Lines between the agent and the setter.
pub fn setter_lines(bytes: &[u8]) {
    let _ = json::<SettingsRequest>(bytes);
    let _ = json::<SettingsResponse>(bytes);
}

/// The record of what GPUs had, read after a crash.
pub fn setter_record(bytes: &[u8]) {
    let Some(folder) = folder() else { return };
    write(&folder.path().join("before.json"), bytes);
    let _ = Record::open(folder.path());
}

/// A watch, cut into lines while it arrives: where it is cut changes nothing.
pub fn watch_answers(bytes: &[u8]) {
    let split = |chunk: usize| {
        let (mut lines, mut found) = (Lines::default(), Vec::new());
        for part in bytes.chunks(chunk) {
            let mut rest = part;
            while !rest.is_empty() {
                let (used, item) = lines.feed(rest);
                rest = &rest[used..];
                if let Some(item) = item {
                    found.push(if let ListItem::Object(line) = item { line.to_vec() } else { Vec::new() });
                    lines.clear();
                }
            }
        }
        found
    };
    let whole = split(bytes.len().max(1));
    assert_eq!(whole, split(1), "byte by byte");
    for line in whole {
        check_line::<SlimPod>(&line);
        check_line::<SlimTrainingJob>(&line);
    }
}

/// A folder in memory where there is one: thousands of inputs are written.
fn folder() -> Option<tempfile::TempDir> {
    let memory = Path::new("/dev/shm");
    if memory.is_dir() { tempfile::tempdir_in(memory).ok() } else { tempfile::tempdir().ok() }
}

fn write(path: &Path, bytes: &[u8]) {
    let mut file = std::fs::File::create(path).expect("a folder of our own can be written to");
    file.write_all(bytes).expect("a folder of our own can be written to");
}
