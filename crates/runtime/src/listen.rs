//! Listening on an address, or on all addresses of a machine whatever families it has.

use std::io;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};

use rustix::io::Errno;
use rustix::net::sockopt::set_ipv6_v6only;
use tokio::net::{TcpListener, TcpSocket};

/// Connections that may wait to be accepted: as many as tokio's own listeners have.
const BACKLOG: u32 = 1_024;

/// Binds `address` and listens. `[::]` stands for all addresses of the machine, of IPv6 and of IPv4, whatever the
/// kernel's `net.ipv6.bindv6only` says. Where the kernel has no IPv6, these are the ones of IPv4. `0.0.0.0` stands for
/// those of IPv4 alone.
///
/// # Errors
/// The system's error; the address is in the message.
///
/// # Panics
/// Outside a tokio runtime.
pub fn bind(address: SocketAddr) -> io::Result<TcpListener> {
    let bound = match listener(address) {
        Err(error) if address.ip() == Ipv6Addr::UNSPECIFIED && lacks_ipv6(&error) => {
            listener(SocketAddr::from((Ipv4Addr::UNSPECIFIED, address.port())))
        }
        bound => bound,
    };
    bound.map_err(|error| io::Error::new(error.kind(), format!("cannot listen on {address}: {error}")))
}

fn listener(address: SocketAddr) -> io::Result<TcpListener> {
    let socket = if address.is_ipv6() { TcpSocket::new_v6()? } else { TcpSocket::new_v4()? };
    if address.ip() == Ipv6Addr::UNSPECIFIED {
        set_ipv6_v6only(&socket, false)?;
    }
    socket.set_reuseaddr(true)?;
    socket.bind(address)?;
    socket.listen(BACKLOG)
}

/// Whether the kernel was built or started without IPv6, or has it switched off.
fn lacks_ipv6(error: &io::Error) -> bool {
    matches!(Errno::from_io_error(error), Some(Errno::AFNOSUPPORT | Errno::ADDRNOTAVAIL))
}

#[cfg(test)]
mod tests {
    use std::net::IpAddr;

    use axum::Router;
    use axum::extract::ConnectInfo;
    use axum::routing::get;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::TcpStream;
    use tokio_util::sync::CancellationToken;

    use super::*;
    use crate::server::{self, Limits};

    /// What a server answers that says who asks.
    async fn answer(address: IpAddr, port: u16) -> String {
        let mut stream = TcpStream::connect((address, port)).await.unwrap();
        stream.write_all(b"GET / HTTP/1.0\r\n\r\n").await.unwrap();
        let mut text = String::new();
        stream.read_to_string(&mut text).await.unwrap();
        text.rsplit("\r\n").next().unwrap_or_default().to_owned()
    }

    #[tokio::test]
    async fn one_listener_answers_both_families_and_knows_clients_by_their_own_addresses() {
        let listener = bind("[::]:0".parse().unwrap()).unwrap();
        let port = listener.local_addr().unwrap().port();
        let who = |ConnectInfo(peer): ConnectInfo<SocketAddr>| async move { peer.ip().to_string() };
        let router = Router::new().route("/", get(who));
        tokio::spawn(server::serve(listener, None, router, Limits::default(), CancellationToken::new()));
        // Not ::ffff:127.0.0.1: connections and requests are counted by address.
        assert_eq!(answer(Ipv4Addr::LOCALHOST.into(), port).await, "127.0.0.1");
        if std::net::TcpListener::bind((Ipv6Addr::LOCALHOST, 0)).is_ok() {
            assert_eq!(answer(Ipv6Addr::LOCALHOST.into(), port).await, "::1");
        } else {
            println!("this machine has no IPv6: only IPv4 was asked");
        }
    }

    #[tokio::test]
    async fn an_address_of_one_family_is_that_address_alone() {
        let listener = bind("127.0.0.1:0".parse().unwrap()).unwrap();
        let address = listener.local_addr().unwrap();
        assert_eq!(address.ip(), Ipv4Addr::LOCALHOST);
        let taken = bind(address).unwrap_err();
        assert_eq!(taken.kind(), io::ErrorKind::AddrInUse);
        assert!(taken.to_string().starts_with(&format!("cannot listen on {address}: ")), "{taken}");
    }

    #[test]
    fn only_a_kernel_without_ipv6_makes_it_listen_on_ipv4_alone() {
        let of = |errno: Errno| io::Error::from_raw_os_error(errno.raw_os_error());
        assert!(lacks_ipv6(&of(Errno::AFNOSUPPORT)) && lacks_ipv6(&of(Errno::ADDRNOTAVAIL)));
        assert!(!lacks_ipv6(&of(Errno::ADDRINUSE)) && !lacks_ipv6(&of(Errno::ACCESS)));
    }
}
