//! `kubectl-andreas ui`: a page on this machine that shows when jobs start and end.
//!
//! **Flows**: the page's questions in, by HTTP on 127.0.0.1; the operator's answers and the API server's objects out, as
//! [`Session`] reads them with the kubeconfig's credentials, which stay in this process. **Never here**: a write to the cluster; a
//! listener on any other address; an answer to who does not show the secret of this run ([`server`]).

mod power;
mod server;
mod session;
#[cfg(test)]
mod tests;

use std::net::Ipv4Addr;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use andreas_api::query::MAX_QUEUE;
use anyhow::{Context as _, Result, anyhow};
use clap::Args;
use tokio::net::TcpListener;

use crate::ask::AskArgs;
use crate::cluster::block_on;
use crate::output;
use session::Session;

/// Programs that open a browser: of Linux, of macOS, of Windows.
const OPENERS: [&str; 3] = ["xdg-open", "open", WINDOWS_OPENER];
/// Its exit status says nothing.
const WINDOWS_OPENER: &str = "explorer";
/// A program that opens a browser and has not failed by then shows the page. Some run until the browser ends.
const OPENED_WITHIN: Duration = Duration::from_secs(2);
/// Until then the browser has read the file that leads it to the page.
const READ_WITHIN: Duration = Duration::from_secs(120);

/// Ui: a page in your browser with the jobs of a namespace over time, power, nodes, and what if.
///
/// Serves the page on 127.0.0.1 until Ctrl-C, and prints its address. The address holds a secret: who has it reads what you may
/// read. Asks as queue, explain and whatif do, with the rights that these need. Power and nodes need the rights of budget and nodes.
#[derive(Clone, Debug, Args)]
pub struct UiArgs {
    /// Port of the page; 0 for any that is free
    #[arg(long, value_name = "PORT", default_value_t = 0)]
    port: u16,
    /// Open the page in the browser
    #[arg(long)]
    open: bool,
    /// Maximum jobs on the page
    #[arg(long, default_value_t = 2_000, value_parser = clap::value_parser!(u32).range(1..=MAX_QUEUE as i64), value_name = "N")]
    limit: u32,
    #[command(flatten)]
    ask: AskArgs,
}

/// Runs the subcommand until Ctrl-C.
///
/// # Errors
/// When the kubeconfig cannot be used, no token can be had, or the port is taken.
pub fn run(args: &UiArgs) -> Result<()> {
    block_on(async {
        let session = Session::connect(args.ask.clone(), args.limit as usize).await?;
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, args.port))
            .await
            .with_context(|| format!("--port {}", args.port))?;
        let port = listener.local_addr()?.port();
        let secret = secret()?;
        let address = format!("http://127.0.0.1:{port}/#{secret}");
        output::print(&format!("{address}\n"))?;
        output::print_error("the page is for you alone: its address holds a secret; Ctrl-C ends it");
        if args.open {
            let link = Link::to(&address)?;
            tokio::spawn(async move {
                if !opened(&OPENERS, &link.file(), OPENED_WITHIN).await {
                    output::print_error(&format!("note: no browser was opened: open {address} yourself"));
                }
                tokio::time::sleep(READ_WITHIN).await;
            });
        }
        let served = axum::serve(listener, server::router(session, port, secret));
        tokio::select! {
            served = served.into_future() => served?,
            stopped = tokio::signal::ctrl_c() => stopped?,
        }
        Ok(())
    })
}

/// 128 random bits as text.
fn secret() -> Result<String> {
    let mut bytes = [0; 16];
    let random = rustls::crypto::ring::default_provider().secure_random;
    random.fill(&mut bytes).map_err(|_| anyhow!("the machine gives no random numbers"))?;
    Ok(bytes.iter().map(|byte| format!("{byte:02x}")).collect())
}

/// A file that leads the browser to the page. Other users of the machine see the arguments of its program, but cannot read this file.
struct Link(PathBuf);

impl Link {
    fn to(address: &str) -> Result<Self> {
        let name = format!("andreas-ui-{}", secret()?);
        let mut folders = folders(|name| std::env::var_os(name).map(PathBuf::from)).into_iter();
        let link = loop {
            let folder = folders.next().unwrap_or_else(std::env::temp_dir).join(&name);
            match create_private(&folder) {
                Ok(()) => break Self(folder),
                Err(error) if folders.len() == 0 => {
                    return Err(error).with_context(|| folder.display().to_string());
                }
                Err(_) => {}
            }
        };
        let file = link.file();
        let page = format!("<meta charset=utf-8><meta http-equiv=refresh content=\"0;url={address}\">");
        std::fs::write(&file, page).with_context(|| file.display().to_string())?;
        Ok(link)
    }

    fn file(&self) -> PathBuf {
        self.0.join("open.html")
    }
}

/// Where the file may be, best first. A browser in a sandbox, as Ubuntu's, reads files of the home folder alone.
fn folders(variable: impl Fn(&str) -> Option<PathBuf>) -> Vec<PathBuf> {
    let own = ["HOME", "XDG_RUNTIME_DIR"].into_iter().filter_map(variable);
    own.filter(|folder| folder.is_absolute()).chain([std::env::temp_dir()]).collect()
}

/// Whether one of the programs opens the file.
async fn opened(programs: &[&str], file: &Path, within: Duration) -> bool {
    for program in programs {
        let mut command = Command::new(program);
        command.arg(file).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        let Ok(mut child) = command.spawn() else { continue };
        let until = Instant::now() + within;
        loop {
            match child.try_wait() {
                Ok(Some(status)) if status.success() || *program == WINDOWS_OPENER => return true,
                Ok(Some(_)) | Err(_) => break,
                Ok(None) if Instant::now() >= until => return true,
                Ok(None) => tokio::time::sleep(Duration::from_millis(20)).await,
            }
        }
    }
    false
}

/// A folder that others cannot look into.
#[cfg(unix)]
fn create_private(folder: &Path) -> std::io::Result<()> {
    use std::os::unix::fs::DirBuilderExt as _;
    std::fs::DirBuilder::new().mode(0o700).create(folder)
}

/// The folder for temporary files is the user's own here.
#[cfg(not(unix))]
fn create_private(folder: &Path) -> std::io::Result<()> {
    std::fs::create_dir(folder)
}

impl Drop for Link {
    fn drop(&mut self) {
        // A file that stays leads nowhere: the secret ends with this process.
        let _ = std::fs::remove_dir_all(&self.0);
    }
}
