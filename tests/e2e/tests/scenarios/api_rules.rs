//! Every rule of the definitions, each with an object that it accepts and one that it refuses, on the real API server.

use std::time::Duration;

use andreas_e2e::api::{Verdict, causes, create, delete, merge, patch, yaml};
use andreas_e2e::chart;
use andreas_e2e::places;
use andreas_e2e::rules::{self, Example, RuleExamples};
use andreas_testbed::Testbed;
use andreas_testbed::wait::until;
use anyhow::{Context as _, Result, ensure};
use kube::Client;
use serde_json::Value;

use crate::api_kubectl;

async fn bed() -> Testbed {
    let bed = Testbed::builder()
        .name("api-rules")
        .without_scheduler()
        .without_controller_manager()
        .start()
        .await
        .unwrap();
    chart::install(&bed, &[]).await.unwrap();
    anyone_may_adopt(&bed).await.unwrap();
    bed
}

/// The rules are tried here, not who may set `spec.adopts`.
async fn anyone_may_adopt(bed: &Testbed) -> Result<()> {
    bed.kubectl(["delete", "validatingadmissionpolicybinding", "andreas-adopts"]).await?.checked()?;
    let adopts = "spec: {adopts: {apiVersion: batch/v1, kind: Job, name: a, uid: u, pods: 1}}";
    let object = example("TrainingJob", adopts)?;
    let client = bed.client();
    let allowed = async || Ok(create(&client, &object, true).await?.accepted().is_ok());
    until("the policy is gone", Duration::from_secs(60), allowed).await?;
    Ok(())
}

fn example(kind: &str, patch: &str) -> Result<Value> {
    let mut object = rules::smallest(kind)?;
    merge(&mut object, &yaml(patch)?);
    Ok(object)
}

/// What the API server says to the last step of an example.
async fn judge(client: &Client, Example { object, change }: &Example) -> Result<Verdict> {
    let Some(change) = change else {
        return create(client, object, true).await;
    };
    create(client, object, false).await?.accepted().context("before the change")?;
    let verdict = patch(client, object, change, true).await;
    delete(client, object).await?;
    verdict
}

async fn holds(client: &Client, RuleExamples { rule, accepted, rejected }: &RuleExamples) -> Result<()> {
    judge(client, accepted).await?.accepted().context("the accepted example")?;
    let refusal = judge(client, rejected).await?.refused().context("the rejected example")?;
    ensure!(refusal.code == 422, "{} {}", refusal.code, refusal.message);
    let causes = causes(&refusal);
    ensure!(causes.len() == 1, "more than one message: {causes:#?}");
    ensure!(causes[0].contains(rule.message), "another message: {}", causes[0]);
    let field = format!("{}{}", rule.path.replace("[]", "[0]"), rule.field_path.unwrap_or_default());
    let field = field.trim_start_matches('.');
    ensure!(causes[0].starts_with(field), "the field {field} is not named: {}", causes[0]);
    Ok(())
}

/// Given the definitions, when each rule's examples are sent, then the good one passes and the bad one gets that rule's
/// message, on the right field, and no other.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn each_rule_accepts_and_refuses_its_examples_with_one_message() {
    let _place = places::take(false).await.unwrap();
    let bed = bed().await;
    let client = bed.client();
    let mut wrong = Vec::new();
    let examples = rules::all().unwrap();
    for of_rule in &examples {
        let rule = of_rule.rule;
        if let Err(error) = holds(&client, of_rule).await {
            wrong.push(format!("{} {} `{}`\n    {error:#}", rule.kind, rule.path, rule.rule));
        }
    }
    assert!(wrong.is_empty(), "{} of {} rules:\n{}", wrong.len(), examples.len(), wrong.join("\n"));

    edits_that_stay_possible(&client).await.unwrap();
    a_status_in_the_same_request_lets_no_template_through(&client).await.unwrap();
    bounds_of_single_fields(&client).await.unwrap();
    api_kubectl::reads_well(&bed).await.unwrap();
    bed.stop().await;
}

/// Deadline, weight, suspend, gpus, retries, preemption and the time-outs can change.
async fn edits_that_stay_possible(client: &Client) -> Result<()> {
    let object = example("TrainingJob", "")?;
    create(client, &object, false).await?.accepted()?;
    for change in [
        "spec: {deadline: '2999-01-01T00:00:00Z'}",
        "spec: {deadline: null, deadlineAfter: 2h}",
        "spec: {weight: 50}",
        "spec: {suspend: true}",
        "spec: {gpus: {min: 2, max: 16, maxNodes: 4, counts: [2, 8], types: [A100], memoryGiB: 40}}",
        "spec: {retries: 0}",
        "spec: {preemption: Never}",
        "spec: {startTimeout: 1h, progressTimeout: 30m, maxRunTime: 36h}",
        "spec: {ttlSecondsAfterFinished: 0, historyLimit: 0}",
    ] {
        patch(client, &object, &yaml(change)?, false).await?.accepted().context(change)?;
    }
    delete(client, &object).await
}

/// The rule on the template looks away when the phase changes; an edit of the job cannot change that.
async fn a_status_in_the_same_request_lets_no_template_through(client: &Client) -> Result<()> {
    let object = example("TrainingJob", "")?;
    create(client, &object, false).await?.accepted()?;
    let template = "spec: {template: {spec: {containers: [{name: trainer, image: example.org/other}]}}}";
    for before in ["", "status: {phase: Pending}"] {
        if !before.is_empty() {
            andreas_e2e::api::patch_status(client, &object, &yaml(before)?).await?.accepted()?;
        }
        let mut both = yaml(template)?;
        merge(&mut both, &yaml("status: {phase: Running}")?);
        let refusal = patch(client, &object, &both, false).await?.refused().context("a new template")?;
        ensure!(refusal.message.contains("the template cannot change"), "{}", refusal.message);
    }
    let running = yaml("status: {phase: Running}")?;
    andreas_e2e::api::patch_status(client, &object, &running).await?.accepted()?;
    delete(client, &object).await
}

/// What a single field says by itself: range, length, pattern, closed set.
async fn bounds_of_single_fields(client: &Client) -> Result<()> {
    for (kind, change, words) in [
        (
            "TrainingJob",
            "spec: {weight: 0}",
            "spec.weight: Invalid value: 0: spec.weight in body should be greater than or equal to 1",
        ),
        ("TrainingJob", "spec: {weight: 1001}", "should be less than or equal to 1000"),
        ("TrainingJob", "spec: {weight: 1.5}", "spec.weight"),
        ("TrainingJob", "spec: {epochs: 0}", "spec.epochs"),
        ("TrainingJob", "spec: {gpus: {min: 0}}", "spec.gpus.min"),
        ("TrainingJob", "spec: {gpus: {counts: [0]}}", "spec.gpus.counts[0]"),
        ("TrainingJob", "spec: {deadlineAfter: 2d}", "spec.deadlineAfter"),
        ("TrainingJob", "spec: {startTimeout: soon}", "spec.startTimeout"),
        ("TrainingJob", "spec: {deadline: tomorrow}", "spec.deadline"),
        ("TrainingJob", "spec: {deadline: '1970-01-01T00:00:00Z'}", "spec.deadline"),
        ("TrainingJob", "spec: {preemption: Sometimes}", "supported values: \"Allowed\", \"Never\""),
        ("TrainingJob", "spec: {checkpoint: {graceSeconds: 3601}}", "spec.checkpoint.graceSeconds"),
        ("TrainingJob", "spec: {checkpoint: {path: relative}}", "spec.checkpoint.path"),
        ("TrainingJob", "spec: {retries: -1}", "spec.retries"),
        ("TrainingJob", "spec: {template: null}", "spec.template: Required value"),
        (
            "TrainingJob",
            "spec: {template: {spec: {containers: null}}}",
            "spec.template.spec.containers: Required value",
        ),
        (
            "TrainingJob",
            "spec: {template: {spec: {containers: [{name: a, ports: [{containerPort: 3000000000}]}]}}}",
            "format int32",
        ),
        ("TrainingJob", "spec: {template: {spec: {containers: [{name: a}, {name: a}]}}}", "Duplicate value"),
        (
            "TrainingProfile",
            "spec: {measurements: [{gpuType: A100, gpus: 1, millisPerEpoch: 0}]}",
            "millisPerEpoch",
        ),
        ("EnergyPolicy", "spec: {pue: '1,3'}", "spec.pue"),
        ("EnergyPolicy", "spec: {prices: {energyPerKWh: 0.2}}", "spec.prices.energyPerKWh"),
        ("EnergyPolicy", "spec: {powerBudget: {marginPercent: 91}}", "spec.powerBudget.marginPercent"),
        (
            "EnergyPolicy",
            "spec: {prices: {tariff: {windows: [{from: '24:00', to: '06:00', energyPerKWh: '1'}]}}}",
            "spec.prices.tariff.windows[0].from",
        ),
        ("EnergyPolicy", "spec: {limits: Maybe}", "spec.limits"),
        ("GpuNode", "spec: {wakeGeneration: -1}", "spec.wakeGeneration"),
    ] {
        let refusal = create(client, &example(kind, change)?, true).await?.refused().context(change)?;
        let causes = causes(&refusal);
        ensure!(
            causes.iter().any(|cause| cause.contains(words)) || refusal.message.contains(words),
            "{change}: {causes:#?}"
        );
    }
    Ok(())
}
