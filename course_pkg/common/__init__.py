"""What every part uses: arguments, files, errors, HTTP, fingerprints."""
