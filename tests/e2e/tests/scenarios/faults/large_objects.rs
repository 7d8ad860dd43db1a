//! Objects at the API server's limit of size, and very many jobs: operator and extender start again within the chart's memory limits.

use std::time::{Duration, Instant};

use andreas_api::phase::{Phase, Reason};
use andreas_e2e::api;
use andreas_e2e::cluster::Options;
use andreas_e2e::job::job;
use andreas_e2e::keeper::{at_full_length, peak_mib};
use andreas_e2e::scenario::scenario;
use anyhow::{Context as _, Result, ensure};
use serde_json::{Value, json};

/// How many objects of 1.3 MB of each kind, how many other jobs, and the most memory that operator and extender may take, MiB.
type Size = (usize, usize, f64, f64);
/// With the chart's memory limits.
const FULL: Size = (300, 20_000, 1_024.0, 256.0);
/// Less than would be taken by whoever kept a tenth of these objects, or one page of them, whole.
const SHORT: Size = (30, 500, 160.0, 64.0);
/// From the start of a program until it is ready.
const READY: Duration = Duration::from_secs(30);
/// Longest for what waits behind hundreds of status writes of 1.3 MB.
const LATER: Duration = Duration::from_secs(600);

#[tokio::test(flavor = "multi_thread")]
async fn hundreds_of_objects_at_the_api_servers_limit_and_many_jobs_fit_into_memory() -> Result<()> {
    let (large, many, most_of_operator, most_of_extender) = if at_full_length() { FULL } else { SHORT };
    scenario(Options { heavy: true, ..Options::default() }, async |c| {
        c.make_namespace("large").await?;
        // given jobs and pods of 1.3 MB, and jobs that wait for a GPU type that is not there
        let text = "x".repeat(32_000);
        let env: Vec<Value> = (0..40).map(|n| json!({"name": format!("T{n}"), "value": text})).collect();
        let spec = json!({"schedulerName": "nobody", "containers": [{"name": "c", "image": "x", "env": env}]});
        let jobs = (0..large).map(|n| {
            let mut tj = job(&format!("large-{n}")).namespace("large").build();
            tj["spec"]["template"]["spec"] = json!({"containers": spec["containers"]});
            tj
        });
        let pods = (0..large).map(|n| {
            json!({"apiVersion": "v1", "kind": "Pod", "spec": spec,
                   "metadata": {"name": format!("large-{n}"), "namespace": "large"}})
        });
        let types = json!({"min": 1, "types": ["NVIDIA-B300"]});
        let waiting = (0..many).map(|n| job(&format!("many-{n}")).namespace("large").spec("gpus", types.clone()).build());
        let began = Instant::now();
        // The API server may fail meanwhile; then the operator loses its Lease, and ends.
        let keeper = c.keep_operators_running();
        let refused = api::create_all(&c.testbed.client(), jobs.chain(pods).chain(waiting)).await?;
        let wrong: Vec<&str> = refused.iter().filter(|s| s.code < 500).map(|s| s.message.as_str()).collect();
        ensure!(wrong.is_empty(), "{} were refused, one with {}", wrong.len(), wrong[0]);
        ensure!(refused.len() * 10 < large, "{} were not made, one with {}", refused.len(), refused[0].message);
        eprintln!("{large} jobs and pods of 1.3 MB and {many} jobs made in {:.0?}", began.elapsed());
        // then each large job waits and says what is wrong with it
        let key = "large/large-0";
        c.observer.until("it says why", LATER, |s| s.has_reason(key, Reason::TemplateRejected)).await?;
        let words = c.observer.seen().message(key, Reason::TemplateRejected);
        ensure!(words.contains("spec.template") && words.contains("64 kB"), "{words}");
        drop(keeper);
        // when operator and extender are started again, then they are ready soon
        let extender = c.extender.as_ref().context("extender mode")?;
        extender.stop().await;
        let began = Instant::now();
        extender.start_again()?;
        let probes = c.extender_probes.context("extender mode")?.to_string();
        extender.wait_for_http(&probes, "/readyz", 2 * READY).await?;
        let extender_ready = began.elapsed();
        let operator_ready = c.restart_operator().await?;
        // and another tenant's job is planned, bound and run
        let tj = job("other");
        c.submit(&tj).await?;
        c.wait_for_phase(&tj, Phase::Succeeded).await?;
        // and both are below their limits
        let operator = peak_mib(&c.operators[0].process)?;
        let extender = peak_mib(c.extender.as_ref().context("extender mode")?)?;
        eprintln!(
            "operator ready after {operator_ready:.1?}, {operator:.0} MiB; extender after {extender_ready:.1?}, {extender:.0} MiB"
        );
        ensure!(operator < most_of_operator, "operator: {operator:.0} MiB");
        ensure!(extender < most_of_extender, "extender: {extender:.0} MiB");
        ensure!(operator_ready < READY && extender_ready < READY, "{operator_ready:?}, {extender_ready:?}");
        Ok(())
    })
    .await
}
