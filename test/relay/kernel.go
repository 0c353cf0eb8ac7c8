//go:build linux

package main

import (
	"fmt"
	"net/netip"
	"os"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// connectOnce makes a connection with as few system calls as possible, because client and proxies
// share the processors.
func connectOnce(to netip.AddrPort) error {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	// Closing must not leave TIME_WAIT, or the ports run out.
	_ = unix.SetsockoptLinger(fd, unix.SOL_SOCKET, unix.SO_LINGER, &unix.Linger{Onoff: 1})
	_ = unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &unix.Timeval{Sec: 5})
	_ = unix.SetsockoptInt(fd, unix.SOL_IP, unix.IP_TRANSPARENT, 1)
	_ = unix.SetsockoptInt(fd, unix.SOL_IP, unix.IP_BIND_ADDRESS_NO_PORT, 1)
	if err := unix.Bind(fd, &unix.SockaddrInet4{Addr: outside.As4()}); err != nil {
		return err
	}
	if err := unix.Connect(fd, &unix.SockaddrInet4{Addr: to.Addr().As4(), Port: int(to.Port())}); err != nil {
		return err
	}
	b := []byte{1}
	if _, err := unix.Write(fd, b); err != nil {
		return err
	}
	_, err = unix.Read(fd, b)
	return err
}

// processTree returns the PIDs of a competitor and its children.
func processTree(w *competitor) []string {
	if w.process == nil {
		return nil
	}
	pid := strconv.Itoa(w.process.Process.Pid)
	children, _ := os.ReadFile(fmt.Sprintf("/proc/%s/task/%s/children", pid, pid))
	return append(strings.Fields(string(children)), pid)
}

// stop kills the process and its children: those of nginx would survive it.
func (w *competitor) stop() {
	if w.process == nil || w.process.Process == nil {
		return
	}
	for _, pid := range processTree(w) {
		if n, err := strconv.Atoi(pid); err == nil {
			_ = unix.Kill(n, unix.SIGKILL)
		}
	}
	_ = w.process.Wait()
}

// cpu returns the CPU time in seconds that a competitor has used.
func cpu(w *competitor) (seconds float64) {
	for _, pid := range processTree(w) {
		stat, _ := os.ReadFile("/proc/" + pid + "/stat")
		fields := strings.Fields(string(stat[strings.LastIndexByte(string(stat), ')')+1:]))
		for _, f := range fields[11:13] {
			ticks, _ := strconv.ParseFloat(f, 64)
			seconds += ticks / 100
		}
	}
	return seconds
}

// resident returns the resident memory of a competitor in bytes.
func resident(w *competitor) (bytes int) {
	for _, pid := range processTree(w) {
		statm, _ := os.ReadFile("/proc/" + pid + "/statm")
		pages, _ := strconv.Atoi(strings.Fields(string(statm))[1])
		bytes += pages * os.Getpagesize()
	}
	return bytes
}

const haproxy = `
global
  maxconn 4000
defaults
  mode tcp
  option splice-auto
  timeout connect 5s
  timeout client 1h
  timeout server 1h
listen echo
  bind 192.168.0.2:8180
  server a 10.0.0.9:8080
listen sink
  bind 192.168.0.2:8181
  server a 10.0.0.9:8081
`

const nginx = `
user root;
worker_processes auto;
error_log /dev/null;
events { worker_connections 8000; }
stream {
  server { listen 192.168.0.2:8280 reuseport; proxy_pass 10.0.0.9:8080; }
  server { listen 192.168.0.2:8281 reuseport; proxy_pass 10.0.0.9:8081; }
}
`

const manifests = `
apiVersion: v1
kind: Service
metadata: {namespace: bench, name: echo}
spec:
  clusterIP: 10.96.0.10
  ports: [{name: echo, port: 80}, {name: sink, port: 81}]
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {namespace: bench, name: echo-1, labels: {kubernetes.io/service-name: echo}}
addressType: IPv4
ports: [{name: echo, port: 8080}, {name: sink, port: 8081}]
endpoints: [{addresses: [10.0.0.9], nodeName: node, conditions: {ready: true}}]
`
