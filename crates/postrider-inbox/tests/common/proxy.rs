//! Stands between a store and its server, and can have that fall silent: as after a failover, nothing is answered and nothing closed.

use std::net::Ipv4Addr;

use tokio::{
    io::copy_bidirectional,
    net::{TcpListener, TcpStream},
    sync::watch,
};

pub struct Proxy {
    port: u16,
    state: watch::Sender<State>,
}

#[derive(Clone, Copy, Default)]
struct State {
    is_silent: bool,
    /// How often it has been. Connections from before hear nothing, however short it was.
    silences: u64,
}

impl Proxy {
    /// In front of the server on this port.
    pub async fn start(server: u16) -> Self {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let (state, told) = watch::channel(State::default());
        tokio::spawn(async move {
            while let Ok((mut client, _)) = listener.accept().await {
                let mut told = told.clone();
                let silences = told.borrow().silences;
                tokio::spawn(async move {
                    let mut server = TcpStream::connect((Ipv4Addr::LOCALHOST, server)).await.unwrap();
                    let silence = async {
                        drop(told.wait_for(|state| state.is_silent || state.silences > silences).await);
                    };
                    tokio::select! {
                        biased;
                        () = silence => std::future::pending().await,
                        _ = copy_bidirectional(&mut client, &mut server) => {}
                    }
                });
            }
        });
        Self { port, state }
    }

    pub fn port(&self) -> u16 {
        self.port
    }

    /// Connections that there are, and those that are made from now on, hear nothing any more.
    pub fn fall_silent(&self) {
        self.state.send_modify(|state| *state = State { is_silent: true, silences: state.silences + 1 });
    }

    /// New connections are served again. The old ones stay as they are.
    pub fn speak_again(&self) {
        self.state.send_modify(|state| state.is_silent = false);
    }
}
