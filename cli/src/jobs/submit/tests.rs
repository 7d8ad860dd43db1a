//! The manifests that `submit` makes.

use clap::Parser;

use super::*;
use crate::cluster::testing::cluster;

#[derive(Parser)]
struct Flags {
    #[command(flatten)]
    args: SubmitArgs,
}

fn args(words: &str) -> SubmitArgs {
    Flags::try_parse_from(format!("submit {words}").split(' ')).unwrap_or_else(|error| panic!("{error}")).args
}

#[test]
fn flags_become_a_manifest_that_the_api_reads() {
    let job = manifest(&args(
        "bert -n team-a --image example.org/bert:1 --gpus 2-16 --nodes 2 --types A,B --deadline 36h --weight 20 --epochs 90 \
         --env SEED=1 --cpu 4 --memory 16Gi --checkpoint models:/save --volume data:/data --retries 0 --max-run-time 48h \
         --suspend -- torchrun train.py --lr 0.1",
    ))
    .unwrap();
    insta::assert_snapshot!(output::document(Format::Yaml, &job).unwrap());
    let read: andreas_api::TrainingJob = serde_json::from_value(job.clone()).unwrap();
    let written = serde_json::to_value(&read.spec).unwrap();
    for field in job["spec"].as_object().unwrap().keys() {
        assert!(!written[field].is_null(), "{field} is not of the API");
    }
}

#[test]
fn few_flags_leave_the_defaults_to_the_api_server() {
    let job = manifest(&args("one --image i")).unwrap();
    let container = json!({"name": "train", "image": "i"});
    assert_eq!(job["spec"], json!({"gpus": {"min": 1}, "template": {"spec": {"containers": [container]}}}));
    assert_eq!(job["metadata"], json!({"name": "one"}));
}

#[test]
fn flags_that_contradict_each_other_are_refused() {
    let error = manifest(&args("one --image i --nodes 4 --gpus 2")).unwrap_err().to_string();
    assert!(error.contains("--nodes 4") && error.contains("2 GPUs"), "{error}");
    let error = manifest(&args("one --image i --volume data")).unwrap_err().to_string();
    assert!(error.contains("--volume data"), "{error}");
    for flags in [
        "--checkpoint models --volume data:/checkpoint/",
        "--checkpoint models:/save --volume data:/save",
        "--volume models:/data/ --volume data:/data",
    ] {
        let error = manifest(&args(&format!("one --image i {flags}"))).unwrap_err();
        assert_eq!(crate::exit::code(&error), crate::exit::USAGE, "{flags}");
        assert!(error.to_string().contains("another one has this folder"), "{error}");
    }
    assert!(manifest(&args("one --image i --checkpoint models:/save --volume data:/checkpoint")).is_ok());
    assert!(Flags::try_parse_from(["submit", "one"]).is_err(), "an image is needed");
}

#[test]
fn who_submits_is_written_into_the_job() {
    let answer = |request: &str, body: Value| match request.contains("selfsubjectreviews") {
        true => (201, json!({"metadata": {}, "status": {"userInfo": {"username": "ada@example.org"}}})),
        false => {
            assert!(
                request.contains("/namespaces/team-a/trainingjobs?") && request.contains("dryRun=All"),
                "{request}"
            );
            (201, body)
        }
    };
    let mut job = manifest(&args("one --image i")).unwrap();
    let made = block_on(async { create(&cluster(answer), "team-a", &mut job, true).await }).unwrap();
    assert_eq!(made["metadata"]["annotations"][ANNOTATION_USER], "ada@example.org");
    assert_eq!((made["kind"].as_str(), made["spec"]["gpus"]["min"].as_i64()), (Some("TrainingJob"), Some(1)));
}
