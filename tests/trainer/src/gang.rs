//! The gang: every rank joins rank 0 at the master's address, and all stay in step.
//!
//! Lines over TCP: a rank says `hello <rank> <world>`, rank 0 answers `start <step>` when all are there; at the end of a
//! step a rank says `step <n>`, rank 0 answers `go <n>` when it has heard all. A connection that ends is a lost peer.

use std::io::{self, Read, Write};
use std::net::{TcpListener, TcpStream, ToSocketAddrs};
use std::time::{Duration, Instant};

use crate::stop::Stop;

/// How often a waiting rank looks whether it is to stop.
const LOOK: Duration = Duration::from_millis(100);

/// Why the gang does not go on.
#[derive(Debug, thiserror::Error)]
pub(crate) enum GangError {
    #[error("asked to stop")]
    Stopped,
    #[error("RendezvousTimeoutError: {0}")]
    Timeout(String),
    #[error("lost peer: {0}")]
    Lost(String),
}

/// This rank's place in the gang.
#[derive(Debug)]
pub(crate) enum Gang {
    Alone,
    Master(Vec<Peer>),
    Member(Peer),
}

#[derive(Debug)]
pub(crate) struct Peer {
    rank: usize,
    stream: TcpStream,
    received: Vec<u8>,
}

/// Where and how long to meet.
#[derive(Debug, Clone)]
pub(crate) struct Rendezvous<'a> {
    pub rank: usize,
    pub world: usize,
    pub master: (&'a str, u16),
    pub limit: Duration,
    pub stop: &'a Stop,
}

impl Gang {
    /// Meets the others. Rank 0 brings the step to start from, the others learn it.
    pub fn meet(at: &Rendezvous<'_>, start: u64) -> Result<(Self, u64), GangError> {
        if at.world == 1 {
            return Ok((Self::Alone, start));
        }
        if at.rank == 0 { at.gather(start).map(|peers| (Self::Master(peers), start)) } else { at.join() }
    }

    /// Returns when every rank has done the step.
    pub fn barrier(&mut self, step: u64, stop: &Stop) -> Result<(), GangError> {
        match self {
            Self::Alone => Ok(()),
            Self::Master(peers) => {
                for peer in peers.iter_mut() {
                    peer.expect(&format!("step {step}"), stop)?;
                }
                peers.iter_mut().try_for_each(|peer| peer.say(&format!("go {step}")))
            }
            Self::Member(master) => {
                master.say(&format!("step {step}"))?;
                master.expect(&format!("go {step}"), stop)
            }
        }
    }
}

impl Rendezvous<'_> {
    fn over(&self, since: Instant, waiting_for: &dyn Fn() -> String) -> Result<(), GangError> {
        if self.stop.is_asked() {
            return Err(GangError::Stopped);
        }
        if since.elapsed() > self.limit {
            return Err(GangError::Timeout(format!("{} after {:.0?}", waiting_for(), self.limit)));
        }
        if self.stop.sleep(LOOK) { Ok(()) } else { Err(GangError::Stopped) }
    }

    /// Listens on the master's own address only: on a real pod it is the pod's, and side by side on one machine each
    /// gang has its own.
    fn gather(&self, start: u64) -> Result<Vec<Peer>, GangError> {
        let since = Instant::now();
        let listener = loop {
            match TcpListener::bind(self.master) {
                Ok(listener) => break listener,
                Err(error) => self.over(since, &|| {
                    format!("cannot listen on {}:{}: {error}", self.master.0, self.master.1)
                })?,
            }
        };
        let failed = |error: io::Error| GangError::Lost(error.to_string());
        listener.set_nonblocking(true).map_err(failed)?;
        let mut peers: Vec<Peer> = Vec::new();
        while peers.len() + 1 < self.world {
            match listener.accept() {
                Ok((stream, _)) => {
                    // Whoever does not say hello in the gang's own words is not of it.
                    if let Some(peer) = self.greet(stream)
                        && peers.iter().all(|other| other.rank != peer.rank)
                    {
                        peers.push(peer);
                    }
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    let missing = || {
                        let here = |rank: &usize| peers.iter().all(|peer| peer.rank != *rank);
                        format!("ranks {:?} did not join", (1..self.world).filter(here).collect::<Vec<_>>())
                    };
                    self.over(since, &missing)?;
                }
                Err(error) => self.over(since, &|| error.to_string())?,
            }
        }
        peers.iter_mut().try_for_each(|peer| peer.say(&format!("start {start}")))?;
        Ok(peers)
    }

    fn greet(&self, stream: TcpStream) -> Option<Peer> {
        let mut peer = Peer::new(0, stream).ok()?;
        let deadline = Instant::now() + Duration::from_secs(2);
        let line = loop {
            if let Some(line) = peer.line().ok()? {
                break line;
            }
            if Instant::now() > deadline || self.stop.is_asked() {
                return None;
            }
        };
        let (rank, world) = line.strip_prefix("hello ")?.split_once(' ')?;
        peer.rank = rank.parse().ok().filter(|rank| (1..self.world).contains(rank))?;
        (world.parse() == Ok(self.world)).then_some(peer)
    }

    fn join(&self) -> Result<(Gang, u64), GangError> {
        let since = Instant::now();
        let (host, port) = self.master;
        loop {
            let connected = self.master.to_socket_addrs().and_then(|mut addresses| {
                let address = addresses.next().ok_or(io::ErrorKind::NotFound)?;
                TcpStream::connect_timeout(&address, Duration::from_secs(5))
            });
            let problem = match connected.and_then(|stream| Peer::new(0, stream)) {
                Ok(mut master) => match self.enter(&mut master, since) {
                    Ok(step) => return Ok((Gang::Member(master), step)),
                    // A master that is only just starting, or of an attempt that is only just ending.
                    Err(GangError::Lost(why)) => why,
                    Err(error) => return Err(error),
                },
                Err(error) => error.to_string(),
            };
            self.over(since, &|| format!("cannot join {host}:{port}: {problem}"))?;
        }
    }

    fn enter(&self, master: &mut Peer, since: Instant) -> Result<u64, GangError> {
        master.say(&format!("hello {} {}", self.rank, self.world))?;
        loop {
            if let Some(line) = master.line()? {
                let step = line.strip_prefix("start ").and_then(|step| step.parse().ok());
                return step.ok_or_else(|| GangError::Lost(format!("rank 0 said {line:?}")));
            }
            self.over(since, &|| "rank 0 waits for other ranks".to_owned())?;
        }
    }
}

impl Peer {
    fn new(rank: usize, stream: TcpStream) -> io::Result<Self> {
        stream.set_nonblocking(false)?;
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(LOOK))?;
        stream.set_write_timeout(Some(Duration::from_secs(10)))?;
        Ok(Self { rank, stream, received: Vec::new() })
    }

    fn lost(&self, why: impl std::fmt::Display) -> GangError {
        GangError::Lost(format!("rank {}: {why}", self.rank))
    }

    fn say(&mut self, line: &str) -> Result<(), GangError> {
        self.stream.write_all(format!("{line}\n").as_bytes()).map_err(|error| self.lost(error))
    }

    /// A whole line, or none yet.
    fn line(&mut self) -> Result<Option<String>, GangError> {
        loop {
            if let Some(end) = self.received.iter().position(|byte| *byte == b'\n') {
                let line: Vec<u8> = self.received.drain(..=end).collect();
                return Ok(Some(String::from_utf8_lossy(&line[..end]).into_owned()));
            }
            if self.received.len() > 256 {
                return Err(self.lost("not a rank of this gang"));
            }
            let mut buffer = [0u8; 256];
            match self.stream.read(&mut buffer) {
                Ok(0) => return Err(self.lost("connection closed")),
                Ok(got) => self.received.extend(&buffer[..got]),
                Err(error) if matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut) => {
                    return Ok(None);
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(self.lost(error)),
            }
        }
    }

    fn expect(&mut self, wanted: &str, stop: &Stop) -> Result<(), GangError> {
        loop {
            match self.line()? {
                Some(line) if line == wanted => return Ok(()),
                Some(line) => return Err(self.lost(format!("said {line:?}, not {wanted:?}"))),
                None if stop.is_asked() => return Err(GangError::Stopped),
                None => {}
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(rank: usize, port: u16, stop: &Stop) -> Rendezvous<'_> {
        Rendezvous { rank, world: 3, master: ("127.0.0.1", port), limit: Duration::from_secs(10), stop }
    }

    fn free_port() -> u16 {
        TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port()
    }

    #[test]
    fn ranks_meet_in_any_order_and_another_client_is_turned_away() {
        let (port, stop) = (free_port(), Stop::default());
        let member = |rank| {
            let (mut gang, start) = Gang::meet(&at(rank, port, &stop), 0).unwrap();
            assert_eq!(start, 7, "learned from rank 0");
            (7..10).for_each(|step| gang.barrier(step, &stop).unwrap());
        };
        let master = || {
            let (mut gang, _) = Gang::meet(&at(0, port, &stop), 7).unwrap();
            (7..10).for_each(|step| gang.barrier(step, &stop).unwrap());
        };
        std::thread::scope(|scope| {
            scope.spawn(|| member(2));
            scope.spawn(master);
            // Rank 1 comes after the HTTP client: before, the gang is not complete.
            let since = Instant::now();
            let mut http_client = loop {
                match TcpStream::connect(("127.0.0.1", port)) {
                    Ok(stream) => break stream,
                    Err(error) => assert!(since.elapsed() < Duration::from_secs(5), "{error}"),
                }
                std::thread::sleep(Duration::from_millis(5));
            };
            http_client.write_all(b"GET / HTTP/1.1\n").unwrap();
            scope.spawn(|| member(1));
        });
    }

    #[test]
    fn a_rank_that_dies_is_a_lost_peer_to_the_others() {
        let (port, stop) = (free_port(), Stop::default());
        std::thread::scope(|scope| {
            let dies = scope.spawn(|| Gang::meet(&at(1, port, &stop), 0).unwrap());
            let lives = scope.spawn(|| {
                let (mut gang, _) = Gang::meet(&at(2, port, &stop), 0).unwrap();
                gang.barrier(0, &stop)
            });
            let (mut master, _) = Gang::meet(&at(0, port, &stop), 0).unwrap();
            drop(dies.join().unwrap());
            assert!(matches!(master.barrier(0, &stop), Err(GangError::Lost(_))));
            drop(master);
            assert!(matches!(lives.join().unwrap(), Err(GangError::Lost(_))));
        });
    }
}
