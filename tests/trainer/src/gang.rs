//! Workers in step: after every step each waits for all the others, as gradients make them.
//!
//! Worker 0 listens; the others connect, say their rank, and learn where the run goes on. A step is one line from
//! each of them and one line back.

use std::io::{BufRead as _, BufReader, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream, ToSocketAddrs as _};
use std::time::{Duration, Instant};

use crate::settings::Settings;

/// How long a step may keep the others waiting.
const STEP_LIMIT: Duration = Duration::from_secs(120);

/// A gang could not meet, or lost a member.
#[derive(Debug, thiserror::Error)]
pub enum GangError {
    /// Not all came in time.
    #[error("rendezvous at {address}: {reason}")]
    Rendezvous {
        /// Where.
        address: String,
        /// Why, or who is missing.
        reason: String,
    },
    /// Somebody left.
    #[error("a peer is lost")]
    PeerLost(#[source] std::io::Error),
}

struct Peer {
    read: BufReader<TcpStream>,
    write: TcpStream,
}

impl Peer {
    fn new(stream: TcpStream) -> std::io::Result<Self> {
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(STEP_LIMIT))?;
        Ok(Self { read: BufReader::new(stream.try_clone()?), write: stream })
    }

    fn hear(&mut self) -> std::io::Result<String> {
        let mut line = String::new();
        if self.read.read_line(&mut line)? == 0 {
            return Err(std::io::ErrorKind::UnexpectedEof.into());
        }
        Ok(line.trim().to_owned())
    }

    fn say(&mut self, line: &str) -> std::io::Result<()> {
        self.write.write_all(format!("{line}\n").as_bytes())
    }
}

/// The other workers, as this one sees them.
pub struct Gang {
    peers: Vec<Peer>,
    leads: bool,
}

impl Gang {
    /// Meets the others. `start` is where worker 0 goes on, in epochs; all learn it.
    ///
    /// # Errors
    /// When not all meet in time, or `stopped` says so.
    pub fn meet(
        settings: &Settings,
        start: f64,
        stopped: &dyn Fn() -> bool,
    ) -> Result<(Self, f64), GangError> {
        let leads = settings.rank == 0;
        if settings.nodes <= 1 {
            return Ok((Self { peers: vec![], leads }, start));
        }
        let address = format!("{}:{}", settings.master_addr, settings.master_port);
        let failed = |reason: String| GangError::Rendezvous { address: address.clone(), reason };
        let end = Instant::now() + Duration::from_secs_f64(settings.rendezvous_seconds.clamp(0.1, 3600.0));
        let mut last = String::from("no address");
        while Instant::now() < end && !stopped() {
            let place = address.to_socket_addrs().ok().and_then(|mut found| found.next());
            let met = match place {
                None => Err(std::io::Error::other("the name has no address yet")),
                Some(place) if leads => Self::lead(settings, place, start, end, stopped),
                Some(place) => Self::follow(settings, place),
            };
            match met {
                Ok(met) => return Ok(met),
                Err(error) => last = error.to_string(),
            }
            std::thread::sleep(Duration::from_millis(100));
        }
        Err(failed(last))
    }

    /// Worker 0 listens at its own address: all pods of a test bed share one network, so not at every address.
    fn lead(
        settings: &Settings,
        place: SocketAddr,
        start: f64,
        end: Instant,
        stopped: &dyn Fn() -> bool,
    ) -> std::io::Result<(Self, f64)> {
        let listener = TcpListener::bind(place)?;
        listener.set_nonblocking(true)?;
        let mut peers = Vec::new();
        while peers.len() + 1 < settings.nodes as usize {
            match listener.accept() {
                Ok((stream, _)) => {
                    stream.set_nonblocking(false)?;
                    let mut peer = Peer::new(stream)?;
                    let rank = peer.hear()?;
                    println!("worker {rank} is here");
                    peers.push(peer);
                }
                Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => {
                    if Instant::now() > end || stopped() {
                        return Err(std::io::Error::other(format!(
                            "{} of {} workers came",
                            peers.len() + 1,
                            settings.nodes
                        )));
                    }
                    std::thread::sleep(Duration::from_millis(20));
                }
                Err(error) => return Err(error),
            }
        }
        for peer in &mut peers {
            peer.say(&start.to_string())?;
        }
        Ok((Self { peers, leads: true }, start))
    }

    fn follow(settings: &Settings, place: SocketAddr) -> std::io::Result<(Self, f64)> {
        let mut peer = Peer::new(TcpStream::connect_timeout(&place, Duration::from_secs(2))?)?;
        peer.say(&settings.rank.to_string())?;
        let start = peer.hear()?.parse().map_err(std::io::Error::other)?;
        Ok((Self { peers: vec![peer], leads: false }, start))
    }

    /// Ends a step with all the others.
    ///
    /// # Errors
    /// When one of them is gone.
    pub fn step(&mut self, number: u64) -> Result<(), GangError> {
        let said = number.to_string();
        for peer in &mut self.peers {
            if self.leads {
                peer.hear().map(|_| ()).map_err(GangError::PeerLost)?;
            } else {
                peer.say(&said).map_err(GangError::PeerLost)?;
            }
        }
        for peer in &mut self.peers {
            if self.leads {
                peer.say(&said).map_err(GangError::PeerLost)?;
            } else {
                peer.hear().map_err(GangError::PeerLost)?;
            }
        }
        Ok(())
    }
}
