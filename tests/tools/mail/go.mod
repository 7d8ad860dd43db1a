module tools/mail

go 1.26.0

tool github.com/emersion/go-smtp/cmd/smtp-debug-server

require (
	github.com/emersion/go-sasl v0.0.0-20241020182733-b788ff22d5a6 // indirect
	github.com/emersion/go-smtp v0.26.0 // indirect
)
