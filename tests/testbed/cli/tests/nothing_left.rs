//! Whichever way a test bed's holder ends, no process and no file stays.

#[path = "../../tests/common/waiting.rs"]
mod waiting;

use std::os::unix::process::CommandExt as _;
use std::path::PathBuf;
use std::process::{Command, Stdio};

use andreas_testbed::control::{self, Status};
use rustix::process::{Pid, Signal, kill_process};
use waiting::{eventually, is_alive};

const TESTBED: &str = env!("CARGO_BIN_EXE_testbed");

/// A name no other run uses.
fn name(of: &str) -> String {
    format!("{of}-{}", std::process::id())
}

fn all_pids(status: &Status) -> Vec<u32> {
    status.components.iter().filter_map(|component| component.pid).chain([status.pid]).collect()
}

async fn gone(what: &str, status: &Status) {
    let (pids, folder): (_, PathBuf) = (all_pids(status), status.data_dir.clone());
    assert_eq!(pids.len(), 5);
    eventually(what, || async { !folder.exists() && pids.iter().all(|pid| !is_alive(*pid)) }).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn after_sigkill_of_the_holder_everything_goes() {
    // given a test bed left running in the background
    let name = name("sigkill");
    let up = Command::new(TESTBED).args(["up", "--detach", "--name", &name]).output().unwrap();
    assert!(up.status.success(), "{}", String::from_utf8_lossy(&up.stderr));
    assert!(String::from_utf8_lossy(&up.stdout).contains("export KUBECONFIG=/"));
    let status = control::ask_status(&name).await.unwrap();
    assert!(status.data_dir.join("etcd").is_dir() && all_pids(&status).iter().all(|pid| is_alive(*pid)));
    assert!(control::running().contains(&name));

    // then its name is taken
    let twice = Command::new(TESTBED).args(["up", "--name", &name]).output().unwrap();
    assert!(!twice.status.success());
    assert!(String::from_utf8_lossy(&twice.stderr).contains("runs already"));

    // when its holder is killed, which no program can catch
    let pid = Pid::from_raw(status.pid.try_into().unwrap()).unwrap();
    kill_process(pid, Signal::KILL).unwrap();

    // then nothing stays, and the name is free
    gone("everything gone after SIGKILL", &status).await;
    let error = control::ask_status(&name).await.unwrap_err().to_string();
    assert!(error.contains("no test bed named"), "{error}");
}

#[tokio::test(flavor = "multi_thread")]
async fn ctrl_c_ends_a_test_bed_also_while_it_starts() {
    // given a test bed held in the foreground
    let name = name("ctrl-c");
    let spawn = || {
        let mut command = Command::new(TESTBED);
        command.args(["up", "--name", &name]).process_group(0);
        command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap()
    };
    let interrupt = |child: &std::process::Child| {
        kill_process(Pid::from_raw(child.id().try_into().unwrap()).unwrap(), Signal::INT).unwrap();
    };
    let mut held = spawn();
    eventually("the test bed answers", || async { control::ask_status(&name).await.is_ok() }).await;
    let status = control::ask_status(&name).await.unwrap();

    // when a component is killed and started again by command
    let command = |verb: &str| {
        let done = Command::new(TESTBED).args([verb, "scheduler", "--name", &name]).output().unwrap();
        assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
    };
    command("kill");
    command("restart");
    let scheduler = control::ask_status(&name).await.unwrap().components.pop().unwrap();
    assert_eq!(scheduler.starts, 2);
    let logs = Command::new(TESTBED).args(["logs", "scheduler", "--name", &name]).output().unwrap();
    assert!(String::from_utf8_lossy(&logs.stdout).contains("=== testbed: start 2 ==="));

    // and Ctrl-C comes, then it ends well and leaves nothing
    interrupt(&held);
    assert!(held.wait().unwrap().success());
    gone("everything gone after Ctrl-C", &status).await;

    // and a Ctrl-C in the middle of a start leaves nothing either
    let mut half = spawn();
    let folders = || {
        let entries = std::fs::read_dir(std::env::temp_dir()).unwrap();
        let prefix = format!("andreas-{name}-");
        entries
            .filter(|entry| entry.as_ref().unwrap().file_name().to_string_lossy().starts_with(&prefix))
            .count()
    };
    eventually("a folder", || async { folders() == 1 }).await;
    interrupt(&half);
    assert_eq!(half.wait().unwrap().code(), Some(130));
    assert_eq!(folders(), 0);
}
