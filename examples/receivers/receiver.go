// Receives Postrider's deliveries.
//
//	go mod init receiver
//	go get github.com/standard-webhooks/standard-webhooks/libraries
//	WEBHOOK_SECRET=whsec_... go run receiver.go 8090
package main

import (
	"errors"
	"fmt"
	"io"
	"log"
	"net/http"
	"os"
	"sync"
	"time"

	standardwebhooks "github.com/standard-webhooks/standard-webhooks/libraries/go"
)

const bodyMax = 1 << 20

// Stands for a table with a unique key. Here a restart forgets it; in a database, insert the id in the transaction of the effect.
var seen sync.Map

func enter(id string, body []byte) error {
	if _, known := seen.LoadOrStore(id, true); known {
		return nil
	}
	err := effect(id, body)
	if err != nil {
		seen.Delete(id) // or the next copy would be taken for done
	}
	return err
}

func effect(id string, body []byte) error {
	fmt.Println("entered", id)
	return nil
}

func main() {
	webhook, err := standardwebhooks.NewWebhook(os.Getenv("WEBHOOK_SECRET"))
	if err != nil {
		log.Fatal(err)
	}
	http.HandleFunc("/webhooks", func(w http.ResponseWriter, r *http.Request) {
		if r.ContentLength > bodyMax {
			w.WriteHeader(http.StatusRequestEntityTooLarge)
			return
		}
		// The bytes as they came: no JSON decoder in front.
		body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, bodyMax))
		var tooLarge *http.MaxBytesError
		switch {
		case errors.As(err, &tooLarge):
			w.WriteHeader(http.StatusRequestEntityTooLarge)
		case err != nil:
			w.WriteHeader(http.StatusBadRequest)
		case webhook.Verify(body, r.Header) != nil:
			w.WriteHeader(http.StatusUnauthorized)
		case enter(r.Header.Get("webhook-id"), body) != nil:
			w.WriteHeader(http.StatusServiceUnavailable) // nothing was written, so have it sent again
		default:
			w.WriteHeader(http.StatusNoContent) // a duplicate, too
		}
	})
	// Without a limit, one who sends half a request holds a connection for ever.
	server := http.Server{Addr: "127.0.0.1:" + os.Args[1], ReadTimeout: 10 * time.Second}
	log.Fatal(server.ListenAndServe())
}
