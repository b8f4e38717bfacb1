//! Devices and sockets of OrbitKV.
