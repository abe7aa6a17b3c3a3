// Package certs has the TLS certificates of a node: it reads them from files, and again when the files
// change.
//
// Called by: server; cli checks files with Check.
//
// Invariants:
//  1. What is in force is one consistent set: every certificate fits its key, and all files were read in
//     one go. A set that is not good changes nothing.
//  2. A set comes into force for new connections; those that are open keep theirs.
//  3. Each set has session ticket keys of its own, which crypto/tls rotates daily: a session cannot be
//     resumed across a change of certificates or of the clients' authorities.
//  4. Files are compared by content, so that writing in place, renaming over, and swapping a symbolic link
//     above them are all noticed.
//
// Locks: mu, held while files are read, never by a connection.
//
// What it does not do: requests and their signatures. A client certificate is a second lock on the door
// and never stands for an access key.
package certs

import (
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"sync"
	"sync/atomic"
	"time"
)

const (
	// pollEvery is how soon a change of the files is noticed without a signal. A few small files are read
	// each time; certificates are renewed days before they end.
	pollEvery = 10 * time.Second
	// maxReads bounds the tries to read files that change meanwhile; two of them must agree.
	maxReads = 5
	// maxFileBytes bounds a file: a bundle of all public authorities has about 250 KiB.
	maxFileBytes = 4 << 20
)

// Modes of client certificates.
const (
	Off     = "off"     // none is asked for
	Request = "request" // one that is given must verify
	Require = "require" // one must be given, and verify
)

var (
	// ErrInvalid says that a file does not hold what it should, or that a key does not fit its certificate.
	ErrInvalid = errors.New("certs: not usable")
	// ErrExpired says that a certificate is not valid now.
	ErrExpired = errors.New("certs: certificate is not valid now")
)

// Pair names the files of a certificate chain and its key, both PEM.
type Pair struct{ Cert, Key string }

// Options of a Store.
type Options struct {
	Pairs      []Pair // the first is for clients that name no server, or one that none of them has
	ClientCA   string // PEM file of the authorities of client certificates
	ClientAuth string // Off, Request, Require; empty: Off
	Log        *slog.Logger
	Now        func() time.Time // nil: time.Now
}

// Store has the set in force.
type Store struct {
	o       Options
	current atomic.Pointer[set]
	reloads atomic.Int64
	errors  atomic.Int64

	mu     sync.Mutex
	failed string // what was complained about; guarded by mu

	stop chan struct{}
	done chan struct{}
}

// set is what was read in one go.
type set struct {
	config *tls.Config
	ends   time.Time // of the certificate that ends first
	digest [sha256.Size]byte
}

// Stats say what is in force.
type Stats struct {
	Expires time.Time // of the certificate that ends first
	Reloads int64     // sets that came into force after the first
	Errors  int64     // tries that changed nothing because the files are not good
}

// Open reads the files and watches them until Close. A certificate that is not valid now is logged and
// used: who is to tell clients, if not the node.
func Open(o Options) (*Store, error) {
	if o.Now == nil {
		o.Now = time.Now
	}
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	s := &Store{o: o, stop: make(chan struct{}), done: make(chan struct{})}
	first, err := load(o)
	if errors.Is(err, ErrExpired) && first != nil {
		o.Log.Warn("certificate is not valid now", "error", err)
		err = nil
	}
	if err != nil {
		return nil, err
	}
	s.current.Store(first)
	go s.watch()
	return s, nil
}

// Check says whether the files could be used now.
func Check(o Options) error {
	if o.Now == nil {
		o.Now = time.Now
	}
	_, err := load(o)
	return err
}

// Config is the configuration for a new connection.
func (s *Store) Config() *tls.Config { return s.current.Load().config }

// Stats reads what is in force.
func (s *Store) Stats() Stats {
	return Stats{Expires: s.current.Load().ends, Reloads: s.reloads.Load(), Errors: s.errors.Load()}
}

// Close ends the watch.
func (s *Store) Close() error {
	close(s.stop)
	<-s.done
	return nil
}

func (s *Store) watch() {
	defer close(s.done)
	ticker := time.NewTicker(pollEvery)
	defer ticker.Stop()
	for {
		select {
		case <-s.stop:
			return
		case <-ticker.C:
			_ = s.Reload() // it has logged and counted
		}
	}
}

// Reload reads the files now. An error says that what was in force stays so.
func (s *Store) Reload() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	next, err := load(s.o)
	if next != nil && next.digest == s.current.Load().digest {
		s.failed = ""
		return nil
	}
	if err != nil {
		s.errors.Add(1)
		if text := err.Error(); text != s.failed { // each kind of trouble once, not at every poll
			s.failed = text
			s.o.Log.Error("certificates stay as they were", "error", err)
		}
		return err
	}
	s.failed = ""
	s.current.Store(next)
	s.reloads.Add(1)
	s.o.Log.Info("certificates are in force", "pairs", len(s.o.Pairs), "expires", next.ends.UTC())
	return nil
}

// load reads all files and puts a set together. With ErrExpired, the set is returned as well.
func load(o Options) (*set, error) {
	files, digest, err := readStable(o)
	if err != nil {
		return nil, err
	}
	config := &tls.Config{MinVersion: tls.VersionTLS12, NextProtos: []string{"http/1.1"}, Time: o.Now}
	s := &set{config: config, digest: digest}
	now := o.Now()
	var expired error
	for i, p := range o.Pairs {
		pair, err := tls.X509KeyPair(files[2*i], files[2*i+1])
		if err != nil {
			return nil, fmt.Errorf("%w: %s and %s: %w", ErrInvalid, p.Cert, p.Key, err)
		}
		leaf := pair.Leaf
		if now.After(leaf.NotAfter) || now.Before(leaf.NotBefore) {
			expired = errors.Join(expired, fmt.Errorf("%w: %s: from %s to %s", ErrExpired, p.Cert,
				leaf.NotBefore.UTC().Format(time.RFC3339), leaf.NotAfter.UTC().Format(time.RFC3339)))
		}
		if s.ends.IsZero() || leaf.NotAfter.Before(s.ends) {
			s.ends = leaf.NotAfter
		}
		config.Certificates = append(config.Certificates, pair)
	}
	if o.ClientAuth == Request || o.ClientAuth == Require {
		config.ClientCAs = x509.NewCertPool()
		if !config.ClientCAs.AppendCertsFromPEM(files[len(files)-1]) {
			return nil, fmt.Errorf("%w: %s holds no certificate", ErrInvalid, o.ClientCA)
		}
		config.ClientAuth = tls.RequireAndVerifyClientCert
		if o.ClientAuth == Request {
			config.ClientAuth = tls.VerifyClientCertIfGiven
		}
	}
	return s, expired
}

// readStable reads until two reads agree, so that files of one generation come together even when they
// are replaced meanwhile.
func readStable(o Options) (files [][]byte, digest [sha256.Size]byte, err error) {
	var before [sha256.Size]byte
	for range maxReads {
		if files, digest, err = read(o); err != nil {
			return nil, digest, err
		}
		if digest == before {
			return files, digest, nil
		}
		before = digest
	}
	return nil, digest, fmt.Errorf("%w: the files change all the time", ErrInvalid)
}

// read returns the content of all files in the order of the options, and its digest.
func read(o Options) (files [][]byte, digest [sha256.Size]byte, err error) {
	var names []string
	for _, p := range o.Pairs {
		names = append(names, p.Cert, p.Key)
	}
	if o.ClientAuth == Request || o.ClientAuth == Require {
		names = append(names, o.ClientCA)
	}
	sum := sha256.New()
	for _, name := range names {
		text, err := readFile(name)
		if err != nil {
			return nil, digest, fmt.Errorf("certs: read: %w", err)
		}
		_, _ = fmt.Fprintf(sum, "%d:", len(text)) // never fails, as below
		_, _ = sum.Write(text)
		files = append(files, text)
	}
	return files, [sha256.Size]byte(sum.Sum(nil)), nil
}

func readFile(name string) ([]byte, error) {
	f, err := os.Open(name)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	text, err := io.ReadAll(io.LimitReader(f, maxFileBytes+1))
	if err == nil && len(text) > maxFileBytes {
		err = fmt.Errorf("%w: %s is larger than %d bytes", ErrInvalid, name, maxFileBytes)
	}
	return text, err
}
