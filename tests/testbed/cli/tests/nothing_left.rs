//! Whichever way a test bed's holder ends, no process and no file stays.

// Helpers of tests may unwrap as tests do.
#![allow(clippy::unwrap_used)]

#[path = "../../tests/common/waiting.rs"]
mod waiting;

use std::io::{BufRead as _, BufReader};
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use rustix::process::{Pid, Signal, kill_process};
use waiting::eventually;

/// A test bed that starts in the foreground, under a name no other run uses.
fn spawn(name: &str) -> Child {
    let mut command = Command::new(env!("CARGO_BIN_EXE_testbed"));
    command.args(["--name", name]).process_group(0);
    command.stdout(Stdio::piped()).stderr(Stdio::null()).spawn().expect("the command")
}

fn signal(child: &Child, signal: Signal) {
    let pid = child.id().try_into().ok().and_then(Pid::from_raw).expect("a process");
    kill_process(pid, signal).expect("a signal");
}

/// Processes whose arguments name the folder.
fn processes(folder: &Path) -> usize {
    let all = std::fs::read_dir("/proc").expect("processes").flatten();
    let lines = all.filter_map(|process| std::fs::read(process.path().join("cmdline")).ok());
    lines.filter(|line| String::from_utf8_lossy(line).contains(&*folder.to_string_lossy())).count()
}

#[tokio::test(flavor = "multi_thread")]
async fn after_sigkill_and_after_ctrl_c_everything_goes() {
    for end in [Signal::KILL, Signal::INT] {
        // given a test bed that is ready
        let mut held = spawn(&format!("ends-{}", std::process::id()));
        let mut line = String::new();
        BufReader::new(held.stdout.take().unwrap()).read_line(&mut line).unwrap();
        let folder = PathBuf::from(line.trim().rsplit(' ').next().unwrap());
        assert!(folder.join("etcd").is_dir() && processes(&folder) >= 4, "{line}");
        // when its holder ends, also in a way which no program can catch
        signal(&held, end);
        assert_eq!(held.wait().unwrap().success(), end == Signal::INT);
        // then nothing stays
        eventually("everything gone", || async { !folder.exists() && processes(&folder) == 0 }).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_ctrl_c_in_the_middle_of_a_start_leaves_nothing() {
    let name = format!("half-{}", std::process::id());
    let mut half = spawn(&name);
    let prefix = format!("andreas-{name}-");
    let folders = || {
        let entries = std::fs::read_dir(std::env::temp_dir()).unwrap().flatten();
        entries.filter(|entry| entry.file_name().to_string_lossy().starts_with(&prefix)).count()
    };
    eventually("a folder", || async { folders() == 1 }).await;
    signal(&half, Signal::INT);
    assert_eq!(half.wait().unwrap().code(), Some(130));
    assert_eq!(folders(), 0);
}
