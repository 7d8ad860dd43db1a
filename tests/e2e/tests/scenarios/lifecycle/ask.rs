//! Questions of a tenant, asked with the command line through the API server's proxy.

use std::path::Path;

use andreas_api::phase::{Phase, Reason};
use andreas_e2e::cluster::{A100, Options, a100};
use andreas_e2e::job::job;
use andreas_e2e::questions::{ask, service};
use andreas_e2e::scenario::{DEFAULT_TIMEOUT, scenario};
use andreas_testbed::wait::until;
use anyhow::{Context as _, Result, ensure};
use serde_json::{Value, json};

async fn json_of(kubeconfig: &Path, args: &[&str]) -> Result<Value> {
    let (code, out, err) = ask(kubeconfig, &[args, &["-o", "json"]].concat()).await?;
    ensure!(code == 0, "{args:?}: {code}: {err}");
    ensure!(
        !out.contains("unseen") && !out.contains("rival"),
        "{args:?} names a job of another namespace: {out}"
    );
    Ok(serde_json::from_str(&out)?)
}

/// Given an account with `edit` in one namespace; when it asks about its own jobs through the API server; then it gets every answer
/// and no name of others, and nothing is created.
#[tokio::test(flavor = "multi_thread")]
async fn a_tenant_gets_every_answer_about_its_own_jobs_and_no_name_of_others() -> Result<()> {
    scenario(Options { groups: vec![a100(1)], ..Options::default() }, async |c| {
        let forward = service(c).await?;
        for line in [
            "create namespace rival",
            "create serviceaccount tenant",
            "create rolebinding tenant --clusterrole=edit --serviceaccount=default:tenant",
        ] {
            c.kubectl(line).await?;
        }
        let tenant = c.testbed.kubeconfig_for_service_account("default", "tenant").await?;
        let all = |name: &str| {
            job(name)
                .epochs(600, 1.0)
                .spec("gpus", json!({"min": 4, "max": 4}))
                .spec("preemption", json!("Never"))
        };
        let unseen = all("unseen").namespace("rival");
        c.submit(&unseen).await?;
        c.wait_for_phase(&unseen, Phase::Running).await?;
        for name in ["first", "second"] {
            c.submit(&all(name).spec("deadlineAfter", json!("2h"))).await?;
        }
        c.wait_for_reason(&all("second"), Reason::WaitingForCapacity).await?;

        let waits = |job: &Value| {
            job["position"].is_u64()
                && job["reason"].is_string()
                && job["expected"]["start"]["p50"].is_string()
        };
        // The first forecast comes with the plan after the one that let it wait.
        let forecast = async || {
            let queue = json_of(&tenant, &["queue"]).await?;
            let jobs = queue["items"].as_array().context("jobs")?;
            ensure!(jobs.len() == 2, "{queue}");
            Ok(jobs.iter().all(waits))
        };
        until("both jobs have a place and an expected start", DEFAULT_TIMEOUT, forecast).await?;

        let shown = json_of(&tenant, &["explain", "second"]).await?;
        ensure!(shown["decided"]["inTheWay"]["others"] == 1, "{shown}");
        ensure!(
            shown["candidates"][0]["cost"]["energyCostMicros"].is_i64()
                && shown["candidates"][0]["obstacle"] == "Nodes",
            "{shown}"
        );

        let added = json_of(&tenant, &["whatif", "--nodes", "+1xA100x8"]).await?;
        ensure!(added["own"].as_u64() >= Some(1), "{added}");
        let file = c.testbed.data_dir().join("asked.json");
        std::fs::write(&file, all("asked").build().to_string())?;
        let file = file.display().to_string();
        let posted = json_of(&tenant, &["whatif", "-f", &file]).await?;
        ensure!(posted["job"]["expected"]["finish"]["p50"].is_string(), "{posted}");
        let can = json_of(&tenant, &["can", "-f", &file, "--deadline", "240h"]).await?;
        ensure!(can["onTimePercent"].as_i64() > Some(90), "{can}");
        let (code, out, err) =
            ask(&tenant, &["can", "-f", &file, "--deadline", "1m", "--at-least", "50"]).await?;
        ensure!(code == 5 && out.contains("On time:"), "{code} {out} {err}");
        ensure!(c.kubectl("get trainingjobs -o name").await?.lines().count() == 2, "something was created");

        // People read the same, without names of others.
        for args in [&["queue", "-o", "wide"][..], &["explain", "second"], &["whatif", "--without", "first"]]
        {
            let (code, out, err) = ask(&tenant, args).await?;
            println!("$ kubectl andreas {}\n{out}", args.join(" "));
            ensure!(code == 0 && !out.contains("unseen") && !out.contains("rival"), "{code} {out} {err}");
        }
        // The other commands: what it may see is its own, in any of their formats.
        let image = ["--image", "registry.example/train:1", "--types", A100];
        for (args, expected) in [
            (&["acct", "--by", "job", "-o", "csv"][..], &[0][..]),
            (&["acct", "--by", "namespace"], &[0]),
            (&[&["submit", "mine"], &image[..]].concat(), &[0]),
            (&["suspend", "mine"], &[0]),
            (&["resume", "mine", "-o", "name"], &[0]),
            (&["cancel", "mine"], &[0]),
            // It waits, so it has no pod.
            (&["logs", "second"], &[4]),
            // Nodes, policy and the programs of the system are not a tenant's to read.
            (&["doctor"], &[0, 5]),
            (&["nodes", "-o", "json"], &[3]),
            (&["budget"], &[0, 3]),
            (&["acct", "-A"], &[3]),
        ] {
            let (code, out, err) = ask(&tenant, args).await?;
            println!("$ kubectl andreas {}: {code}\n{out}{err}", args.join(" "));
            ensure!(expected.contains(&code), "{args:?}: {code} {out} {err}");
            let said = format!("{out}{err}");
            ensure!(!said.contains("unseen") && !said.contains("rival"), "{args:?}: {said}");
        }
        // What is not its own is refused, and a job of others is like one that does not exist.
        for (args, expected) in [
            (&["queue", "-n", "rival"][..], 3),
            (&["explain", "unseen", "-n", "rival"], 3),
            (&["explain", "unseen"], 4),
            (&["whatif", "--without", "unseen"], 4),
            (&["whatif", "--nodes", "+1xH900x8"], 1),
        ] {
            let (code, out, err) = ask(&tenant, args).await?;
            println!("$ kubectl andreas {}\n{err}", args.join(" "));
            ensure!(code == expected && out.is_empty(), "{args:?}: {code} {out} {err}");
        }
        // An administrator with a client certificate, by a token of the chart's reader.
        let (code, out, err) = ask(&c.testbed.kubeconfig(), &["queue", "-n", "rival"]).await?;
        ensure!(code == 0 && out.contains("unseen"), "{code} {out} {err}");
        forward.abort();
        Ok(())
    })
    .await
}
